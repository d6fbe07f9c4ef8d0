"""A multi-layer LSTM that trains fast under ``torch.func.vmap``, where ``torch.nn.LSTM`` falls back to a slow path."""

import math

import torch
from torch import Tensor, nn

from fedslice.core.errors import UserError
from fedslice.nn.recurrence import recur


class LSTM(nn.Module):
    """The equations, gate order (i, f, g, o), parameter names and initial values of ``torch.nn.LSTM``.

    State dicts interchange with it. What is not there: initial states, projections, dropout, two directions. A
    gradient can be taken once; a second derivative is refused.
    """

    keeps_to_the_cache = True  # however many clients come at once, it takes them in groups

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, size in sizes.items():
            if size < 1:
                raise UserError(f"LSTM: {name} is {size}, expected at least 1; give a positive number.")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        for layer in range(num_layers):
            inputs = hidden_size if layer else input_size
            shapes = {"weight_ih": (inputs,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for name, columns in shapes.items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(4 * hidden_size, *columns)))
        self._names = [name for name, _ in self.named_parameters()]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every value from U(-1/√H, 1/√H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for values in self.parameters():
            nn.init.uniform_(values, -bound, bound)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The top layer's states [B, T, H] for x [B, T, input], and the one at each sample's last position [B, H].

        What lies beyond a sample's length is not looked at and gives zeros; without lengths every position counts. T
        may be 0, and so may any length: the last state of nothing is zero.
        """
        return self._run(True, x, lengths)

    def last(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The state at each sample's last position alone, for a little less time."""
        return self._run(False, x, lengths)[1]

    def _run(self, whole: bool, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            raise UserError(f"LSTM: x has shape {tuple(x.shape)}, expected [samples, positions, {self.input_size}].")
        if lengths is None:
            lengths = torch.full(x.shape[:1], x.shape[1], dtype=torch.int64, device=x.device)
        if lengths.shape != x.shape[:1] or lengths.is_floating_point():
            raise UserError(
                f"LSTM: lengths have shape {tuple(lengths.shape)} and type {lengths.dtype}, expected one whole number "
                f"for each of the {len(x)} samples."
            )
        parameters = (getattr(self, name) for name in self._names)
        outputs, last = recur(whole, *(value.unsqueeze(0) for value in (x, lengths, *parameters)))
        return outputs.squeeze(0), last.squeeze(0)

    def extra_repr(self) -> str:
        """As ``torch.nn.LSTM`` shows itself."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
