"""``--wire``: every message of a run becomes bytes and is read back, and nothing else is different."""

from pathlib import Path

import pytest

from command import SMALL, fedslice
from fedslice.config import read_file, request
from fedslice.core.errors import UserError
from fedslice.core.message import Message

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the messages that are packed, one for each client's."""
    seen: list[str] = []
    pack = Message.pack

    def counted(self: Message, client: int, fingerprint: bytes) -> bytes:
        seen.append(self.head.kind.name)
        return pack(self, client, fingerprint)

    monkeypatch.setattr(Message, "pack", counted)
    return seen


@pytest.mark.parametrize("recipe", ["fedavg", "fedsubavg", "sign", "scaffold"])
def test_a_run_over_the_wire_has_the_metrics_and_bytes_of_one_in_memory(recipe: str, packed: list[str]) -> None:
    plain = fedslice("run", *SMALL, "--recipe", recipe, "--json").metrics
    assert not packed
    wired = fedslice("run", *SMALL, "--recipe", recipe, "--wire", "--json").metrics
    assert packed.count("UPLOAD") == packed.count("DOWNLOAD") == packed.count("REQUEST") == packed.count("INVITE") == 36
    assert packed.count("ENROL") == packed.count("WELCOME") == 30
    assert len(wired) == len(plain)
    for one, other in zip(wired, plain, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            exact = name == "round" or name.endswith("bytes")
            assert value == (other[name] if exact else pytest.approx(other[name], rel=1e-4)), name


def test_it_is_a_run_of_its_own_that_resumes_as_it_began() -> None:
    first = fedslice("run", *SMALL, "--wire", "--out", "wired", "--json").metrics
    assert fedslice("run", *SMALL, "--wire", "--out", "wired", "--resume", "--json").metrics == first
    other = fedslice("run", *SMALL, "--out", "wired", "--resume")
    assert other.code == 2
    assert "wire" in other.err


def test_an_experiment_file_may_say_so(packed: list[str]) -> None:
    Path("wired.toml").write_text('task = "hotcold"\nwire = true\n')
    done = fedslice("run", "wired.toml", *SMALL[1:], "--out", "here", "--json")
    assert done.code == 0, done.err
    assert packed
    assert read_file(Path("wired.toml"))["wire"] is True
    assert request({"task": "hotcold", "wire": True}).command() == "fedslice run hotcold --wire"
    assert request({"task": "hotcold", "wire": False}).command() == "fedslice run hotcold"
    with pytest.raises(UserError, match="wire='yes'"):
        request({"task": "hotcold", "wire": "yes"})


def test_the_help_says_what_it_is_for() -> None:
    words = " ".join(fedslice("run", "--help").out.split())
    assert "--wire Turn every message into bytes and read it back, for checking" in words
