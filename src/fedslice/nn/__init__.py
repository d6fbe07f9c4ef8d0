"""Layers that are fast under ``torch.func.vmap``, for anyone's ``nn.Module``."""

from fedslice.nn.lstm import LSTM

__all__ = ["LSTM"]
