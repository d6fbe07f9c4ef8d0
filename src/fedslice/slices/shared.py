"""Shared blocks: some parameters are exchanged, the rest is the client's own (FDRL, section 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedslice.core.capabilities import Rule
from fedslice.core.errors import UserError, shown
from fedslice.core.memory import Memory
from fedslice.core.message import Body, Fields
from fedslice.core.part import ClientRun, Round, ServerRun, State
from fedslice.core.slice import Slice, Values
from fedslice.core.spec import Spec
from fedslice.models.discriminative import ENCODERS
from fedslice.models.images import PAIRS, ImageClassifier
from fedslice.models.resnet import ResNet
from fedslice.network.head import head
from fedslice.panel import Panel
from fedslice.slices.base import Slices
from fedslice.slices.whole import Whole

_NOTHING = "none"  # which a command line reads as no value at all
Patterns = Annotated[str, BeforeValidator(lambda given: _NOTHING if given is None else given), Field(min_length=1)]
_INNER = "inner."  # before the names of the inner part's state


class SharedState(State):
    """The state of the inner part."""

    def __init__(self, run: ServerRun, inner: Any, names: list[str]):
        super().__init__(run)
        self.inner = inner
        self.names = names

    def state_dict(self) -> Values:
        """Return as tensors what rounds have changed."""
        return {f"{_INNER}{name}": value for name, value in self.inner.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self.inner.load_state_dict(_own(state))

    def facts_dict(self) -> Values:
        """Return as tensors what enrolments have changed."""
        return {f"{_INNER}{name}": value for name, value in self.inner.facts_dict().items()}

    def load_facts_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with saved facts."""
        self.inner.load_facts_dict(_own(state))


class SharedMemory(Memory):
    """The memory of the inner part, and the private block."""

    def __init__(self, run: ClientRun, place: str, inner: Any, names: list[str]):
        super().__init__(run, place)
        self.inner = inner
        self.names = names


class Shared(Slices):
    """Parameters whose names match ``patterns`` (separated by commas) travel; all others never leave the client.

    In place of a pattern may stand ``body``, all but the last Linear layer, ``head``, the last Linear layer,
    ``batchnorm``, all layers of batch normalisation, or ``none``: nothing travels. A pattern after ``!`` takes away
    from those before it, or from all: ``!batchnorm`` is FedBN. Running statistics travel with the parameters of their
    layer. A client is sent the initial values of its private parameters once, when it is new.

    ``inner`` is another part, such as ``ChannelDropout(budget=0.5)``. A client holds what that part says, of a private
    table its own rows for example, and exchanges of it what it says and is shared. Where the inner part allocates
    budgets, it does so as if all that a client holds could travel.

    Args:
        patterns: Names of the parameters that travel, with ``*``, separated by commas; or ``body``, ``head``,
            ``batchnorm``, ``none``. ``!`` before one takes it away.
        inner: The slices part that says what of the shared parameters is exchanged.
    """

    label = "shared"

    patterns: Patterns = "shared.*"
    inner: Slices = Whole()

    @field_validator("inner")
    @classmethod
    def _no_other_blocks(cls, inner: Slices) -> Slices:
        if isinstance(inner, Shared):
            raise ValueError("shared blocks inside of shared blocks; give patterns that match both")
        return inner

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities of the inner part for what travels; of the rest the server knows nothing."""
        nothing = {"nothing"} if self.patterns == _NOTHING else set()
        return (self.inner.provides & {"stale", "narrows", "redraws"}) | {"remembers"} | nothing

    def rules(self) -> Iterable[Rule]:
        """Refuse to compress nothing, and private parts whose size changes from round to round."""
        yield from super().rules()
        yield Rule(
            "slices",
            "redraws",
            False,
            "slices=shared keeps a client's private layers, which inner=width with drawn=true would cut again in every "
            "round; leave drawn out.",
        )
        if self.patterns == _NOTHING:
            yield Rule(
                "codec",
                "exact",
                True,
                "slices=shared with patterns=none sends nothing, and codec={label} has nothing to compress; use "
                "codec=dense.",
            )

    def names(self, spec: Spec) -> list[str]:
        """Return the parameters that travel.

        Raises:
            UserError: If a pattern matches nothing.
        """

        def sort() -> list[str]:
            patterns = [pattern.strip() for pattern in self.patterns.split(",")]
            wanted = set(spec.shapes) if patterns[0].startswith("!") else set()
            for pattern in patterns:
                found = _matching(pattern.removeprefix("!").strip(), spec)
                wanted = wanted.difference(found) if pattern.startswith("!") else wanted.union(found)
            if not wanted and self.patterns != _NOTHING:
                raise UserError(
                    f"slices=shared: patterns={self.patterns} leaves no parameter that travels; say none, if so it is "
                    "meant."
                )
            return [name for name in spec.shapes if name in wanted]

        return spec.once((Shared, self.patterns), sort)

    # --- the client's side

    def client_memory(self, run: ClientRun, place: str) -> SharedMemory:
        """Sort the parameters; a pattern that matches nothing is refused."""
        return SharedMemory(run, place, self.inner.client_memory(run, f"{place}.inner"), self.names(run.spec))

    def introduce(self, memory: SharedMemory, clients: Tensor) -> Body:
        """For the inner part."""
        return self.inner.introduce(memory.inner, clients)

    def held(self, memory: SharedMemory, clients: Tensor) -> Tensor:
        """Return the values that the inner part lets a client hold, private parameters included."""
        return self.inner.held(memory.inner, clients)

    def hold(self, memory: SharedMemory, t: int, clients: Tensor) -> Slice:
        """The same."""
        return self.inner.hold(memory.inner, t, clients)

    def request(self, memory: SharedMemory, t: int, clients: Tensor, hold: Slice) -> Body:
        """That of the inner part."""
        return self.inner.request(memory.inner, t, clients, hold)

    def came(self, memory: SharedMemory, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The shared block, as far as the inner part sends it."""
        return self.inner.came(memory.inner, t, clients, hold.only(memory.names))

    def up(
        self,
        memory: SharedMemory,
        t: int,
        clients: Tensor,
        hold: Slice,
        start: Values,
        end: Values,
        came: Body,
    ) -> tuple[Slice, Body]:
        """The shared block, as far as the inner part sends it, and nothing else ever."""
        return self.inner.up(memory.inner, t, clients, hold.only(memory.names), start, end, came)

    # --- the server's side

    def server_state(self, run: ServerRun) -> SharedState:
        """Sort the parameters; a pattern that matches nothing is refused."""
        return SharedState(run, self.inner.server_state(run), self.names(run.spec))

    def enrol(self, state: SharedState, clients: Tensor, facts: Body) -> None:
        """For the inner part."""
        self.inner.enrol(state.inner, clients, facts)

    def leave(self, state: SharedState, clients: Tensor, facts: Body) -> None:
        """For the inner part."""
        self.inner.leave(state.inner, clients, facts)

    def requested(self, state: SharedState, t: int, clients: Tensor, request: Body) -> Slice:
        """Return the values that the inner part lets a client hold."""
        return self.inner.requested(state.inner, t, clients, request)

    def down(self, state: SharedState, t: int, clients: Tensor, hold: Slice) -> Slice:
        """The shared block, as far as the inner part sends it."""
        return self.inner.down(state.inner, t, clients, hold.only(state.names))

    def tell(self, state: SharedState, t: int, clients: Tensor, part: Slice) -> Body:
        """That of the inner part, of the shared block."""
        return self.inner.tell(state.inner, t, clients, part)

    def sent(self, state: SharedState, t: int, clients: Tensor, hold: Slice, upload: Body) -> Slice:
        """The shared block, as far as the inner part sends it."""
        return self.inner.sent(state.inner, t, clients, hold.only(state.names), upload)

    def taken(self, state: SharedState, clients: Tensor, up: Slice, taken: Tensor) -> None:
        """For the inner part."""
        self.inner.taken(state.inner, clients, up, taken)

    def forget(self, state: SharedState, clients: Tensor) -> None:
        """For the inner part."""
        self.inner.forget(state.inner, clients)

    def observe(self, state: SharedState, end: Round) -> None:
        """For the inner part."""
        self.inner.observe(state.inner, end)

    def panels(self, state: SharedState) -> list[Panel]:
        """Those of the inner part."""
        return self.inner.panels(state.inner)

    # --- what both sides derive

    def facts(self, spec: Spec) -> Fields:
        """Those of the inner part."""
        return self.inner.facts(spec)

    def initial(self, spec: Spec) -> frozenset[str]:
        """The private block, which never comes down else."""
        return self._private(spec) | self.inner.initial(spec)

    def request_fields(self, spec: Spec) -> Fields:
        """Those of the inner part."""
        return self.inner.request_fields(spec)

    def down_fields(self, spec: Spec, part: Slice) -> Fields:
        """Those of the inner part, of the shared block."""
        return self.inner.down_fields(spec, part)

    def up_ids(self, spec: Spec, hold: Slice) -> Fields:
        """Those of the inner part, of the shared block."""
        return self.inner.up_ids(spec, hold.only(self.names(spec)))

    def up_fields(self, spec: Spec, part: Slice) -> Fields:
        """Those of the inner part, of the shared block."""
        return self.inner.up_fields(spec, part)

    def kept(self, spec: Spec) -> frozenset[str]:
        """The private block, and what the inner part keeps."""
        return self._private(spec) | self.inner.kept(spec)

    def statistics(self, spec: Spec) -> list[str]:
        """Those of layers whose parameters travel; of layers without parameters all but with ``!batchnorm``."""
        names, out = self.names(spec), []
        plain = bool(names) and "!batchnorm" not in self.patterns.replace(" ", "").split(",")
        for name in spec.statistics:
            layer = name.rpartition(".")[0]
            own = [one for one in spec.shapes if one.rpartition(".")[0] == layer]
            if any(one in names for one in own) if own else plain:
                out.append(name)
        return out

    def _private(self, spec: Spec) -> frozenset[str]:
        return frozenset(spec.shapes) - frozenset(self.names(spec))


def _own(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inner part's state out of that of the whole."""
    for name in state:
        if not name.startswith(_INNER):
            raise ValueError(f"slices=shared has no state {name!r}; it has that of its inner part, {_INNER}...")
    return {name.removeprefix(_INNER): value for name, value in state.items()}


def _matching(pattern: str, spec: Spec) -> list[str]:
    """The parameters that a pattern, or a word in its place, names."""
    if pattern == _NOTHING:
        return []
    if pattern in ("body", "head"):
        try:
            last = head(spec).parameters(spec)
        except UserError:
            raise UserError(
                f"slices=shared: patterns={pattern} needs a Linear layer that is trained, and "
                f"{type(spec.module).__name__} has none; name parameters, as in patterns='{next(iter(spec.shapes))}'."
            ) from None
        return last if pattern == "head" else [name for name in spec.shapes if name not in last]
    if pattern == "batchnorm":
        norms = [name for name, part in spec.module.named_modules() if isinstance(part, _BatchNorm)]
        if not norms:
            raise UserError(
                f"slices=shared: patterns={pattern} needs a layer of batch normalisation, and "
                f"{type(spec.module).__name__} has none; name parameters, as in patterns='{next(iter(spec.shapes))}'."
            )
        return [name for name in spec.shapes if name.rpartition(".")[0] in norms]
    found = [name for name in spec.shapes if fnmatchcase(name, pattern)]
    if not found:
        raise UserError(
            f"slices=shared: no parameter matches {shown(pattern)}; the model has {', '.join(spec.shapes)}; give "
            f"patterns that match some of them, or {_model_with(pattern, spec.module)}."
        )
    return found


def _model_with(pattern: str, module: nn.Module) -> str:
    """Words for a model whose parameters match a pattern that those of this one do not."""
    encoder = pattern.partition(".")[0]
    if encoder not in ENCODERS:
        return "a model with a part of that name"
    if isinstance(module, ImageClassifier | ResNet):
        deep = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        return f"a model with two encoders: model={'fdrl-cnn' if deep else 'fdrl-mlp'} (there are {', '.join(PAIRS)})"
    return "a model with two encoders: build it with fedslice.models.discriminative.Discriminative"
