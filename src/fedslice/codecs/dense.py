"""Values as they are."""

from dataclasses import replace

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedslice.codecs.base import Codec
from fedslice.core.encodings import Floats
from fedslice.core.message import Body, Field, Fields, OnSlice
from fedslice.messages import Upload
from fedslice.parts import CHECKED, World
from fedslice.slice import Slice, Values


@dataclass(config=CHECKED)
class Dense(Codec):
    """Every value at its parameter's own precision, after the ids that say which coordinates they are."""

    label = "dense"
    keeps_zeros = True
    exact = True
    carries_values = True

    def setup(self, world: World) -> None:
        """Learn the precision of every parameter."""
        super().setup(world)
        self._dtypes = world.task.dtypes

    def fields(self, t: int, part: Slice) -> Fields:  # noqa: ARG002
        """The values, of one precision after the other."""
        groups: dict[torch.dtype, list[str]] = {}
        for name in part.axes:
            groups.setdefault(self._dtypes[name], []).append(name)
        names = {dtype: f"values.{dtype}".replace("torch.", "") for dtype in groups}
        if len(groups) == 1:
            names = dict.fromkeys(groups, "values")
        return {names[dtype]: Field(Floats(dtype), on=part.only(own)) for dtype, own in groups.items()}

    def encode(self, t: int, upload: Upload) -> Body:
        """The update itself: its values are laid out on all coordinates only where they are packed."""
        fields = self.fields(t, upload.slice)
        return dict.fromkeys(fields, upload)

    def decode(self, t: int, frame: Upload, body: Body) -> Upload:  # noqa: ARG002
        """The values of all fields."""
        values: Values = {}
        for found in body.values():
            if isinstance(found, Upload):
                return replace(found, clients=frame.clients, weights=frame.weights)
            assert isinstance(found, OnSlice)
            values |= found.values
        return replace(frame, values={name: values[name] for name in frame.slice.axes})

    def words(self, t: int, part: Slice, sizes: dict[str, Tensor]) -> Tensor:  # noqa: ARG002
        """One per value."""
        return part.numbers().double()
