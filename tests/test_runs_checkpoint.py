import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fedslice.core.errors import UserError
from fedslice.runs import checkpoint

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
METAS = st.dictionaries(
    st.text(),
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8),
    max_size=4,
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bytes of any type, so that NaN payloads and negative zeros have to survive too."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    numel = torch.Size(shape).numel()
    raw = draw(st.binary(min_size=numel * dtype.itemsize, max_size=numel * dtype.itemsize))
    values = torch.tensor(list(raw), dtype=torch.uint8)
    if dtype == torch.bool:
        values = values % 2
    whole = values.view(dtype).reshape(shape)
    return whole.movedim(0, -1) if draw(st.booleans()) and shape else whole


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert (tensor.dtype, tensor.shape) == (right[name].dtype, right[name].shape)
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (tensor, right[name])]
        assert torch.equal(raw[0], raw[1])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    state=st.dictionaries(st.text().filter(lambda name: name != "__metadata__"), tensors(), max_size=4),
    meta=METAS,
)
def test_tensors_and_meta_come_back_to_the_bit(tmp_path: Path, state: dict[str, Tensor], meta: Any) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, state, meta)
    loaded, found = checkpoint.load(path)
    assert_same(loaded, state)
    assert found == meta
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_views_shared_memory_and_lazy_signs_are_saved_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    turn = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "base": base,
        "same": base,
        "part": base[1],
        "overlap": base.reshape(-1)[2:9],
        "transposed": base.T,
        "expanded": base[:, :1].expand(3, 5),
        "conjugate": turn.conj(),
        "negative": turn.conj().imag,
        "parameter": torch.nn.Parameter(base[:2]),
    }
    checkpoint.save(tmp_path / "c", state, {})
    loaded, _ = checkpoint.load(tmp_path / "c")
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), name
    loaded["base"].zero_()
    assert torch.equal(loaded["same"], base)


def test_meta_keeps_infinities(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {}, {"best": float("-inf")})
    assert checkpoint.load(tmp_path / "c") == ({}, {"best": float("-inf")})


def test_loaded_tensors_do_not_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"w": torch.ones(5000)}, {})
    loaded, _ = checkpoint.load(path)
    path.write_bytes(b"")
    assert torch.equal(loaded["w"], torch.ones(5000))


def test_the_file_has_the_permissions_of_any_other_file(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"w": torch.ones(1)}, {})
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failed_save_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"w": torch.ones(2)}, {"round": 1})
    with pytest.raises(KeyError):
        checkpoint.save(path, {"w": torch.ones(2, dtype=torch.complex128)}, {})
    with pytest.raises(TypeError):
        checkpoint.save(path, {}, {"not": {"json"}})
    assert checkpoint.load(path)[1] == {"round": 1}
    assert os.listdir(tmp_path) == ["c"]


def test_the_next_save_removes_what_a_crash_left(tmp_path: Path) -> None:
    partial = tmp_path / checkpoint.partial_name("c")
    partial.mkdir()
    (partial / ".tmpAb3").write_bytes(b"half of a")
    checkpoint.save(tmp_path / "c", {"w": torch.ones(2)}, {})
    assert os.listdir(tmp_path) == ["c"]


def test_every_truncation_and_every_changed_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}, {"seed": 3})
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    damaged.append(whole + b"\0")
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(UserError, match="delete it") as refusal:
            checkpoint.load(path)
        assert str(path) in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"round,loss\n1,0.5\n", b"PK\x03\x04" + bytes(100), b"\x80\x04K\x01."])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(tmp_path / "c")


def test_foreign_safetensors_directories_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="not a checkpoint of fedslice"):
        checkpoint.load(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(tmp_path / "missing")
