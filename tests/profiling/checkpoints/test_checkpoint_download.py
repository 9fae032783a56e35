"""Downloads against a real server: what it logged tells what was asked for, the disk tells what came of it."""

from __future__ import annotations

import pytest
import yaml
from checkpoint_repository import Published, digest, some_bytes, without_rights

from profiling.core.checkpoints.download import download
from profiling.core.checkpoints.transfer import DownloadError, Patience
from profiling.core.checkpoints.verify import verify
from profiling.errors import InputError

SIZE = 2_000_000
BODY = some_bytes(SIZE)
AT_ONCE = Patience(attempts=3, backoff_s=0.0, timeout_s=5.0)
ONE_TRY = Patience(attempts=1, backoff_s=0.0, timeout_s=5.0)


def get(published, name="vae", patience=AT_ONCE) -> str:
    return download(published.entry(name), patience=patience)


def test_a_download_is_whole_and_its_digest_is_recorded(published):
    published.publish("vae", BODY)
    seen = []
    said = download(published.entry("vae"), tick=lambda done, total: seen.append((done, total)))
    assert published.file("vae").read_bytes() == BODY
    assert yaml.safe_load(published.lock.read_text()) == {"files": {"vae": {"sha256": digest(BODY), "size": SIZE}}}
    assert published.leftovers() == []
    assert seen[0] == (0, SIZE)
    assert seen[-1] == (SIZE, SIZE)
    assert "downloaded" in said
    assert verify(published.entry("vae")) == digest(BODY)


def test_a_second_run_does_nothing(published):
    published.publish("vae", BODY)
    get(published)
    before = published.file("vae").stat().st_mtime_ns
    assert get(published) == "ok, not downloaded"
    assert len(published.server.log) == 1
    assert published.file("vae").stat().st_mtime_ns == before


def test_a_cut_body_is_gone_on_with_in_the_same_run(published):
    published.publish("vae", BODY).cuts = [1_500_000]
    get(published)
    first, second = published.server.log
    assert published.file("vae").read_bytes() == BODY
    assert first.range is None
    assert second.range is not None
    assert second.status == 206
    assert second.sent < SIZE - 1_000_000
    assert published.leftovers() == []


def test_a_cut_body_is_gone_on_with_by_the_next_run(published):
    published.publish("vae", BODY).cuts = [1_500_000]
    with pytest.raises(DownloadError, match=r"type python -m profiling\.checkpoints vae"):
        get(published, patience=ONE_TRY)
    assert not published.file("vae").exists()
    assert published.leftovers() == ["vae.pt.part", "vae.pt.part.etag"]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].sent < SIZE - 1_000_000


@pytest.mark.parametrize("checks_if_range", [True, False])
def test_a_remote_file_that_changed_is_fetched_anew_and_not_spliced(published, checks_if_range):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.checks_if_range = [1_500_000], checks_if_range
    with pytest.raises(DownloadError):
        get(published, patience=ONE_TRY)
    remote.body, remote.etag = some_bytes(SIZE, seed=1), '"v2"'
    get(published)
    assert published.file("vae").read_bytes() == remote.body
    # A server that checks If-Range answers with the whole new file at once.
    assert [served.status for served in published.server.log] == ([200, 200] if checks_if_range else [200, 206, 200])


def test_a_date_serves_where_there_is_only_a_weak_etag(published):
    remote = published.publish("vae", BODY)
    remote.etag, remote.modified, remote.cuts = 'W/"v1"', "Fri, 21 Nov 2025 08:00:00 GMT", [1_500_000]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].status == 206


@pytest.mark.parametrize("fault", [{"ranges": False}, {"etag": None}])
def test_a_server_that_cannot_resume_makes_the_download_start_again(published, fault):
    remote = published.publish("vae", BODY)
    remote.cuts = [1_500_000]
    vars(remote).update(fault)
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.sent for served in published.server.log] == [1_500_000, SIZE]


def test_a_part_that_is_already_whole_is_not_fetched_again(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.file("vae").with_name("vae.pt.part").write_bytes(BODY)
    published.file("vae").with_name("vae.pt.part.etag").write_text('"v1"')
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.status for served in published.server.log] == [416]
    assert published.leftovers() == []


def test_a_part_longer_than_the_file_is_thrown_away(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.file("vae").with_name("vae.pt.part").write_bytes(BODY + b"more")
    published.file("vae").with_name("vae.pt.part.etag").write_text('"v1"')
    get(published)
    assert published.file("vae").read_bytes() == BODY


@pytest.mark.parametrize("statuses", [[500], [503, 429]])
def test_a_server_in_trouble_is_asked_again(published, statuses):
    published.publish("vae", BODY).statuses = list(statuses)
    said = []
    download(published.entry("vae"), say=said.append, patience=AT_ONCE)
    assert [line.partition(";")[2] for line in said] == [" trying again in 0 s"] * len(statuses)
    assert published.file("vae").read_bytes() == BODY
    assert [served.status for served in published.server.log] == [*statuses, 200]


def test_attempts_that_bring_nothing_end(published):
    published.publish("vae", BODY).statuses = [503] * 10
    with pytest.raises(DownloadError, match="HTTP 503 Service Unavailable; gave up after 3 attempts"):
        get(published)
    assert len(published.server.log) == 3
    assert published.leftovers() == []


def test_progress_renews_patience(published):
    remote = published.publish("vae", BODY)
    remote.cuts = [600_000, 600_000, 600_000, None]
    get(published, patience=Patience(attempts=2, backoff_s=0.0))
    assert published.file("vae").read_bytes() == BODY


def test_a_file_that_is_not_there_is_one_line(published):
    published.publish("vae", BODY)
    published.server.files.clear()
    with pytest.raises(DownloadError, match="HTTP 404 Not Found") as caught:
        get(published)
    assert "\n" not in str(caught.value)
    assert len(published.server.log) == 1
    assert not published.file("vae").exists()
    assert published.leftovers() == []


def test_no_server_at_all_is_one_short_line(published):
    published.publish("vae", BODY, url="http://127.0.0.1:9/vae.pt")
    with pytest.raises(DownloadError, match="Connection refused; gave up after 3 attempts") as caught:
        get(published)
    assert "0x" not in str(caught.value)


def test_a_body_without_a_length_is_refused_since_a_cut_could_not_be_seen(published):
    published.publish("vae", BODY).no_length = True
    with pytest.raises(DownloadError, match="does not say how many bytes"):
        get(published)
    assert not published.file("vae").exists()


def test_the_recorded_digest_is_enforced_on_the_next_download(published):
    remote = published.publish("vae", BODY)
    get(published)
    published.file("vae").unlink()
    remote.body, remote.etag = some_bytes(SIZE, seed=1), '"v2"'
    with pytest.raises(InputError, match=r"'lock\.yaml' says " + digest(BODY)):
        get(published)
    assert not published.file("vae").exists()
    remote.body, remote.etag = BODY, '"v1"'
    get(published)
    assert published.file("vae").read_bytes() == BODY


def test_the_manifests_digest_is_enforced_on_the_first_download(published):
    published.publish("vae", BODY, sha256="0" * 64)
    with pytest.raises(InputError, match="the manifest says 0000"):
        get(published)
    assert not published.file("vae").exists()
    assert not published.lock.exists()


def test_a_wrong_file_that_is_there_is_kept_and_reported(published):
    published.publish("vae", BODY)
    get(published)
    published.file("vae").write_bytes(b"mine")
    for act in (get, lambda published: verify(published.entry("vae"))):
        with pytest.raises(InputError, match=r"is not the published file.*move it away"):
            act(published)
    assert published.file("vae").read_bytes() == b"mine"
    assert len(published.server.log) == 1


def test_a_file_put_there_by_hand_is_recorded_then_enforced(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.file("vae").write_bytes(BODY)
    assert verify(published.entry("vae")) == digest(BODY)
    assert "recorded" in get(published)
    assert published.entry("vae").sha256 == digest(BODY)
    assert published.server.log == []


def test_a_disk_too_small_is_said_before_it_is_filled(published):
    published.publish("vae", BODY).announced = 10**18
    with pytest.raises(DownloadError, match=r"MiB are free on the disk; the file needs 953674316406\.2 MiB.*then type"):
        get(published)
    assert not published.file("vae").exists()


def test_a_folder_that_cannot_be_written_is_one_line(open_folder, server):
    published = Published(open_folder, server)
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir(mode=0o555)
    with without_rights(), pytest.raises(DownloadError, match=r"cannot write 'checkpoints/vaes/vae\.pt\.part': Perm"):
        get(published)


def test_a_folder_under_the_final_name_is_refused(published):
    published.publish("vae", BODY)
    published.file("vae").mkdir(parents=True)
    with pytest.raises(InputError, match="is not a file"):
        get(published)
