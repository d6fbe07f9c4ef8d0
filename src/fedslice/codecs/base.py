"""The interface of every codec."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedslice.core.encodings import Floats
from fedslice.core.entries import OnSlice, View, merged, per_client
from fedslice.core.fields import VALUES, value_fields, value_names
from fedslice.core.header import Header
from fedslice.core.message import Body, Field, Fields
from fedslice.core.part import Part
from fedslice.core.slice import Slice
from fedslice.core.spec import Spec
from fedslice.core.update import Step, Update
from fedslice.privacy.quantize import Quantizer


class Codec(Part):
    """The way in which values travel, and the space in which the server sums them.

    A codec declares the fields of a client's upload, computes their entries on the client (:meth:`encode`) and the
    update from them on the server (:meth:`decode`). It never touches bytes: :mod:`fedslice.core.message` packs,
    unpacks, sizes and checks all fields.

    A codec whose codes are linear may have them summed as they are (capability ``sums-codes``): :meth:`decode` then
    returns an update over a space of its own (any names and shapes), and :meth:`expand` takes the mean of it back to
    the model once.

    Values come down as they are unless the codec says otherwise in :meth:`send`, :meth:`send_fields` and
    :meth:`receive`. A codec with several sets of fields numbers them: the server chooses the layout of a round and
    says its number in every header.
    """

    place: ClassVar[str] = "codec"

    # --- the client's side

    def receive(self, memory: Any, head: Header, down: Slice, body: Body) -> Body:  # noqa: ARG002
        """Return what came down, with the model's values on ``down`` under the name ``values``."""
        names = [name for name in value_names(memory.run.spec, down) if name in body]
        return body | {VALUES: merged([body[name] for name in names])} if names else body

    @abstractmethod
    def encode(self, memory: Any, head: Header, update: Update, came: Body) -> Body:
        """Return the entries of :meth:`fields` for a chunk of clients, all of whose updates are finite or will not be
        taken."""
        raise NotImplementedError

    # --- the server's side

    def layout(self, state: Any, t: int) -> int:  # noqa: ARG002
        """Return the number of the set of fields that round ``t`` uses."""
        return 0

    def send(self, state: Any, head: Header, model: View) -> Body:  # noqa: ARG002
        """Return the entries of :meth:`send_fields` for a view of the model on what comes down.

        Args:
            state: The codec's.
            head: The request's header: clients, and the rounds whose downloads they have kept.
            model: The model's values.
        """
        return dict.fromkeys(value_names(state.run.spec, model.part), model)

    @abstractmethod
    def decode(self, state: Any, head: Header, part: Slice, body: Body) -> Update:
        """Return the update that a message stands for, which the server adds up."""
        raise NotImplementedError

    def taken(self, state: Any, head: Header, update: Update, taken: Tensor) -> None:
        """Note that the decoded updates of those ``taken`` [clients] are part of the round."""

    def expand(self, state: Any, t: int, mean: Step) -> Step:  # noqa: ARG002
        """Return the mean in the space of the model, from the space of the sum."""
        return mean

    # --- what both sides derive

    def layouts(self, spec: Spec) -> Iterable[int]:  # noqa: ARG002
        """Return the numbers of all sets of fields that rounds may use."""
        return (0,)

    def send_fields(self, spec: Spec, down: Slice, layout: int) -> Fields:  # noqa: ARG002
        """Return the fields of what comes down of the model."""
        return value_fields(spec, down)

    @abstractmethod
    def fields(self, spec: Spec, part: Slice, layout: int) -> Fields:
        """Return the fields of an upload about these coordinates."""
        raise NotImplementedError

    def sealed(self, spec: Spec, fields: Fields, whole: Fields, layout: int) -> Fields:  # noqa: ARG002
        """Return what travels in the place of an upload's fields.

        Args:
            spec: What both sides know.
            fields: The codec's fields and the reports of all parts.
            whole: The same of an upload of one client that sends the whole model.
            layout: The layout of the round.
        """
        return fields

    def quantizer(self, spec: Spec, name: str, size: int, layout: int) -> Quantizer:
        """Return how a field of a sealed upload is rounded.

        Args:
            spec: What both sides know.
            name: The field's name.
            size: Clients in the cohort.
            layout: The layout of the round.
        """
        raise NotImplementedError

    def gathered(self, state: Any, size: int) -> None:
        """Note the size of a round's cohort, before it is asked for anything."""

    def words(self, spec: Spec, part: Slice, sizes: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """Return [clients] 32-bit words in the unit of FLSS's paper, which counts neither ids nor scales."""
        return sum(sizes.values(), torch.zeros(part.clients)).double() / 4


def scales(spec: Spec, part: Slice) -> Field:
    """Return a field with one magnitude for each parameter."""
    return Field(Floats(spec.dtype, negative=False), shape=(len(part.axes),), about="a magnitude per parameter")


def signed(positive: Tensor, magnitude: Tensor) -> Tensor:
    """Return plus or minus each client's magnitude."""
    plus = per_client(magnitude, positive)
    return torch.where(positive.bool(), plus, -plus)


def restored(part: Slice, entries: OnSlice) -> OnSlice:
    """Return entries on all of a slice."""
    return entries if entries.part is part else OnSlice(part, entries.at(part))
