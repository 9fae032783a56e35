"""ResNet-50 with its loss: the forward half of the best known training step, through the transformers library."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from models.pretrained import make_model


class ClassificationLoss(nn.Module):
    """A picture classifier and the cross-entropy that it is trained with."""

    def __init__(self, model: nn.Module, weights_source: str | None) -> None:
        super().__init__()
        self.model = model
        self.weights_source = weights_source

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, an fp32 scalar, of pictures [b, 3, h, w] with int64 `labels` [b]."""
        logits = self.model(pixel_values=pixel_values).logits  # [b, num_labels]
        return F.cross_entropy(logits.float(), labels)


def build_resnet_training(folder: str | None = None, **config: Any) -> ClassificationLoss:
    """Build transformers' ResNetForImageClassification under its loss; ResNet-50 with 1000 labels if nothing is named.

    Source: https://huggingface.co/docs/transformers/model_doc/resnet

    Args:
        folder: made by save_pretrained; its own config rules and `config` is left aside. None: random weights.
        config: keys of ResNetConfig.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        FileNotFoundError: the folder does not exist.
        ValueError: an unknown key, or a folder without the whole model.

    """
    from transformers import ResNetForImageClassification

    return ClassificationLoss(make_model(ResNetForImageClassification, folder, {"num_labels": 1000, **config}), folder)
