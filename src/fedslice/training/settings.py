"""Settings that determine a run besides its task and its recipe. This module loads without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedslice.core.errors import UserError, shown, unknown
from fedslice.settings import first_problem

Whole = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _names(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise ValueError("expected a list of names; write for example measure=['personal']")
    return list(value)


class ExperimentSettings(BaseModel):
    """Settings of training: its length, its evaluations, and its computation.

    A field's ``metavar`` and ``usual`` say how the command line shows it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rounds: Whole = Field(
        100,
        description="Communication rounds.",
        json_schema_extra={"metavar": "N", "usual": "the task's own"},
    )
    seed: Seed = Field(0, description="Seed of model, cohorts and batches.", json_schema_extra={"metavar": "N"})
    eval_every: Whole = Field(
        10,
        description="Rounds between evaluations.",
        json_schema_extra={"metavar": "N", "usual": "the task's own"},
    )
    engine: str = Field("auto", description="auto, vectorized or sequential.", json_schema_extra={"metavar": "NAME"})
    chunk: Whole | None = Field(
        None,
        description="Clients trained at once.",
        json_schema_extra={"metavar": "N", "usual": "as many as fit the caches"},
    )
    device: str = Field("cpu", description="cpu, cuda or mps.", json_schema_extra={"metavar": "NAME"})
    measure: Annotated[list[str], BeforeValidator(_names)] = Field(
        [], description="What else to log at evaluations: {instruments}.", json_schema_extra={"metavar": "NAME"}
    )
    wire: bool = Field(
        False,
        description="Turn every message into bytes and read it back, for checking: slower, with the same metrics.",
    )

    def experiment(self) -> dict[str, Any]:
        """Return the settings of this model alone, of one that has more: what an experiment takes."""
        return {name: getattr(self, name) for name in ExperimentSettings.model_fields}


Settings = TypeVar("Settings", bound=BaseModel)


def checked(kind: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Return settings of a kind, or raise a sentence about the first that is wrong."""
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            raise unknown("setting of a run", str(first["loc"][0]), kind.model_fields) from None
        if first["type"] == "string_type":
            raise UserError(f"{first['loc'][0]}={shown(first['input'])}: expected a name.") from None
        raise UserError(f"{first_problem(error)}.") from None
