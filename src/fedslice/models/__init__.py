"""The models of the papers' tasks: plain `nn.Module`s that work alone and stacked under `torch.func.vmap`."""

from fedslice.models.din import DIN
from fedslice.models.fasttext import FastText
from fedslice.models.images import ImageClassifier
from fedslice.models.logistic import SparseLogistic
from fedslice.models.resnet import ResNet
from fedslice.models.sentiment import SentimentLSTM

__all__ = ["DIN", "FastText", "ImageClassifier", "ResNet", "SentimentLSTM", "SparseLogistic"]
