"""What a run is: records, statistics, components, cells and the order they run in."""
