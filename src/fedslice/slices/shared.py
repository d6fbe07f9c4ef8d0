"""Shared blocks: some parameters are exchanged, the rest is the client's own (S2, section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedslice.errors import UserError, shown, unknown
from fedslice.local.fdrl import ENCODERS
from fedslice.local.head import head
from fedslice.models.images import PAIRS, ImageClassifier
from fedslice.models.resnet import ResNet
from fedslice.panel import Panel
from fedslice.parts import CHECKED, RoundEnd, World
from fedslice.settings import first_problem, pairs
from fedslice.slice import Slice, Values
from fedslice.slices.base import Slices
from fedslice.slices.channels import ChannelDropout
from fedslice.slices.rows import FeatureRows
from fedslice.slices.whole import Whole
from fedslice.slices.width import Width
from fedslice.task import Task

if TYPE_CHECKING:
    from fedslice.recipe import Recipe

INNER: dict[str, type[Slices]] = {kind.label: kind for kind in (Whole, FeatureRows, ChannelDropout, Width)}
_NOTHING = "none"  # which a command line reads as no value at all
Patterns = Annotated[str, BeforeValidator(lambda given: _NOTHING if given is None else given), Field(min_length=1)]


@dataclass(config=CHECKED)
class Shared(Slices):
    """Parameters whose names match ``patterns`` (separated by commas) travel; all others never leave the client.

    In place of a pattern may stand ``body``, all but the last Linear layer, ``head``, the last Linear layer, or
    ``none``: nothing travels.

    ``inner`` is another part, by its name and settings as on a command line (``channel-dropout budget=0.5``). A client
    holds what that part says, of a private table its own rows for example, and exchanges of it what it says and is
    shared. Where the inner part allocates budgets, it does so as if all that a client holds could travel.
    """

    label = "shared"
    remembers = True

    patterns: Patterns = "shared.*"
    inner: str = Whole.label

    @field_validator("inner")
    @classmethod
    def _read(cls, text: str) -> str:
        _build(text)
        return text

    def __post_init__(self) -> None:
        self._inner = _build(self.inner)

    @property
    def stale(self) -> bool:  # type: ignore[override]
        """What the inner part says of what travels; of the rest the server knows nothing."""
        return self._inner.stale

    @property
    def narrows(self) -> bool:  # type: ignore[override]
        """As the inner part does."""
        return self._inner.narrows

    @property
    def sends_all(self) -> bool:
        """Private parameters stay at home."""
        return False

    def check(self, recipe: Recipe) -> None:
        """Refuse to compress nothing, and private parts whose size changes from round to round."""
        super().check(recipe)
        if isinstance(self._inner, Width) and self._inner.drawn:
            raise UserError(
                "slices=shared keeps a client's private layers, which inner='width drawn=true' would cut anew in every "
                "round; leave drawn out."
            )
        if self.patterns == _NOTHING and not recipe.codec.exact:
            raise UserError(
                f"slices=shared with patterns=none sends nothing, and codec={recipe.codec.label} has nothing to "
                "compress; use codec=dense."
            )

    def setup(self, world: World) -> None:
        """Sort the parameters; a pattern that matches nothing is refused."""
        super().setup(world)
        self._inner.setup(world)
        wanted = [name for pattern in self.patterns.split(",") for name in _matching(pattern.strip(), world.task)]
        self._shared = [name for name in self._shapes if name in wanted]

    def observe(self, end: RoundEnd) -> None:
        """For the inner part."""
        self._inner.observe(end)

    def held(self) -> Tensor:
        """What the inner part lets a client hold, private parameters included."""
        return self._inner.held()

    def hold(self, t: int, clients: Tensor) -> Slice:
        """The same."""
        return self._inner.hold(t, clients)

    def down(self, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The shared block, as far as the inner part sends it."""
        return self._inner.down(t, clients, hold).only(self._shared)

    def up(self, t: int, clients: Tensor, hold: Slice, start: Values, end: Values) -> Slice:
        """The shared block, as far as the inner part sends it, and nothing else ever."""
        return self._inner.up(t, clients, hold, start, end).only(self._shared)

    def sent(self, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """For the inner part, to which all that is private is as if it had gone up: it never comes down."""
        whole = Slice.whole(len(clients), self._shapes)
        self._inner.sent(clients, Slice(len(clients), self._shapes, whole.axes | up.axes), taken)

    def kept(self) -> frozenset[str]:
        """The private block, and what the inner part keeps."""
        return (frozenset(self._shapes) - frozenset(self._shared)) | self._inner.kept()

    def panels(self) -> list[Panel]:
        """Those of the inner part."""
        return self._inner.panels()

    def state_dict(self) -> Values:
        """That of the inner part."""
        return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with it."""
        self._inner.load_state_dict(state)


def _matching(pattern: str, task: Task) -> list[str]:
    """The parameters that a pattern, or a word in its place, names."""
    if pattern == _NOTHING:
        return []
    if pattern in ("body", "head"):
        try:
            last = head(task).parameters(task)
        except UserError:
            raise UserError(
                f"slices=shared: patterns={pattern} needs a Linear layer that is trained, and "
                f"{type(task.module).__name__} has none; name parameters, as in patterns='{next(iter(task.shapes))}'."
            ) from None
        return last if pattern == "head" else [name for name in task.shapes if name not in last]
    found = [name for name in task.shapes if fnmatchcase(name, pattern)]
    if not found:
        raise UserError(
            f"slices=shared: no parameter matches {shown(pattern)}; the model has {', '.join(task.shapes)}; give "
            f"patterns that match some of them, or {_model_with(pattern, task)}."
        )
    return found


def _model_with(pattern: str, task: Task) -> str:
    """Words for a model whose parameters match a pattern that those of this one do not."""
    encoder = pattern.partition(".")[0]
    if encoder not in ENCODERS:
        return "a model with a part of that name"
    if isinstance(task.module, ImageClassifier | ResNet):
        deep = any(isinstance(layer, nn.Conv2d) for layer in task.module.modules())
        return f"a model with two encoders: model={'fdrl-cnn' if deep else 'fdrl-mlp'} (there are {', '.join(PAIRS)})"
    return "a model with two encoders: build it with fedslice.models.discriminative.Discriminative"


def _build(text: str) -> Slices:
    """The inner part from its name and ``key=value`` words."""
    name, *words = text.split() or [""]
    if name not in INNER:
        raise unknown("part", name, INNER)
    try:
        return INNER[name](**pairs(words))
    except ValidationError as error:
        raise ValueError(f"{name}: {first_problem(error)}") from None
