"""Tiny ImageNet from its folder and from its zip; every file that is not as it should be is named."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedslice.datasets import tinyimagenet
from layouts import one_sentence

Image = pytest.importorskip("PIL.Image")

IDS = ("n03444034", "n01443537", "n02124075")
GREYS = {f"{name}_{n}": 20 * kind + 5 * n + 10 for kind, name in enumerate(IDS) for n in range(2)}


def jpeg(level: int, side: int = 64, mode: str = "RGB") -> bytes:
    """One level everywhere: that survives the compression."""
    out = io.BytesIO()
    Image.new(mode, (side, side), level if mode == "L" else (level, level, 200)).save(out, "JPEG")
    return out.getvalue()


def files() -> dict[str, bytes]:
    """The official layout; one training image is grey, as some of the official ones are."""
    made = {"wnids.txt": "".join(f"{name}\n" for name in IDS).encode(), "words.txt": b"n01443537\tgoldfish\n"}
    for number, (name, level) in enumerate(GREYS.items()):
        kind = name.split("_")[0]
        made[f"train/{kind}/images/{name}.JPEG"] = jpeg(level, mode="L" if number == 3 else "RGB")
        made[f"train/{kind}/{kind}_boxes.txt"] = f"{name}.JPEG\t0\t0\t63\t63\n".encode()
    made["val/val_annotations.txt"] = "".join(f"val_{n}.JPEG\t{IDS[n]}\t0\t0\t9\t9\n" for n in (2, 0)).encode()
    made |= {f"val/images/val_{n}.JPEG": jpeg(100 + n) for n in (0, 2)}
    return {**made, "test/images/test_0.JPEG": b"never read"}


def write(folder: Path, content: dict[str, bytes]) -> Path:
    for name, raw in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


def write_zip(folder: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / tinyimagenet.ARCHIVE, "w") as archive:
        for name, raw in content.items():
            archive.writestr(f"tiny-imagenet-200/{name}", raw)
    return folder / tinyimagenet.ARCHIVE


def made(tmp_path: Path, kind: str) -> Path:
    if kind == "folder":
        return write(tmp_path, files())
    if kind == "inner folder":
        write(tmp_path / "tiny-imagenet" / "tiny-imagenet-200", files())
        return tmp_path
    file = write_zip(tmp_path, files())
    return file if kind == "zip" else tmp_path


@pytest.mark.parametrize("kind", ["folder", "inner folder", "zip", "folder of the zip"])
def test_images_and_classes_are_those_that_were_written(tmp_path: Path, kind: str) -> None:
    train, test = tinyimagenet.read(made(tmp_path, kind))
    assert train.image.shape == (6, 3, 64, 64)
    expected = {level: IDS.index(name.split("_")[0]) for name, level in GREYS.items()}
    found = [5 * round(level / 5) for level in train.image[:, 0].reshape(6, -1).mean(1)]
    assert dict(zip(found, train.label.tolist(), strict=True)) == expected
    assert (np.ptp(train.image.reshape(6, 3, -1), axis=2) == 0).all()
    blue = {level: int(value) for level, value in zip(found, train.image[:, 2, 0, 0], strict=True)}
    grey = list(GREYS.values())[3]
    assert blue[grey] == grey, "all three channels of a grey image are alike"
    assert all(abs(value - 200) <= 2 for level, value in blue.items() if level != grey)
    assert test.label.tolist() == [2, 0], "in the order of the annotations"
    assert test.image[:, 0, 0, 0].tolist() == pytest.approx([102, 100], abs=1)


NAME = f"train/{IDS[0]}/images/{IDS[0]}_0.JPEG"
BAD: dict[str, tuple[str, bytes | None, str]] = {
    "no image": (NAME, b"hello", f"{NAME} cannot be decoded as a JPEG file"),
    "cut short": (NAME, jpeg(3)[:400], f"{NAME} cannot be decoded as a JPEG file"),
    "other size": (NAME, jpeg(3, side=65), f"{NAME} has 65 by 65 pixels, expected 64 by 64; fetch"),
    "huge size": (NAME, jpeg(3).replace(b"\x00\x40\x00\x40", b"\xff\xff\xff\xff"), f"{NAME} "),
    "other format": (NAME, b"P6 64 64 255\n" + bytes(3 * 64 * 64), f"{NAME} cannot be decoded as a JPEG file"),
    "far too long": (
        NAME,
        bytes(tinyimagenet.MAX_FILE_BYTES + 1),
        f"{NAME} has 4,194,305 bytes, expected at most 4,194,304",
    ),
    "class without a name": ("train/n12345678/images/x.JPEG", jpeg(3), "is of a class that wnids.txt does not name"),
    "annotated class": ("val/val_annotations.txt", b"val_0.JPEG\tn1\t0\n", "line 1: found 'val_0.JPEG\\tn1\\t0'"),
    "annotated file": ("val/val_annotations.txt", b"../../x.JPEG\tn01443537\n", "line 1: found '../../x.JPEG"),
    "annotation of a word": ("val/val_annotations.txt", b"val_0.JPEG\tn01443537\nx\n", "line 2: found 'x', expected a"),
    "missing image": ("val/val_annotations.txt", b"val_7.JPEG\tn01443537\n", "val/images/val_7.JPEG is missing"),
    "no annotations": ("val/val_annotations.txt", None, "val/val_annotations.txt is missing"),
    "id": ("wnids.txt", b"n01443537\ngoldfish\n", "wnids.txt, line 2: found 'goldfish', expected up to 200"),
    "id twice": ("wnids.txt", b"n01443537\nn01443537\n", "wnids.txt, line 2: found 'n01443537'"),
    "201 ids": ("wnids.txt", b"".join(b"n%08d\n" % n for n in range(201)), "wnids.txt, line 201: found 'n00000200'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_not_as_it_should_be_is_named(tmp_path: Path, case: str, zipped: bool) -> None:
    name, raw, saying = BAD[case]
    content = files()
    content.pop(name, None)
    if raw is not None:
        content[name] = raw
    told = one_sentence(tinyimagenet.read, (write_zip if zipped else write)(tmp_path, content))
    assert told.startswith(f"{tmp_path}")
    assert saying in told


def test_archives_and_folders_that_are_something_else(tmp_path: Path) -> None:
    assert one_sentence(tinyimagenet.read, tmp_path).startswith(f"{tmp_path} holds no wnids.txt; give the folder")
    assert "is not a folder" in one_sentence(tinyimagenet.read, tmp_path / "nowhere")
    broken = tmp_path / "x.zip"
    broken.write_bytes(b"hello")
    assert one_sentence(tinyimagenet.read, broken).startswith(f"{broken} cannot be read as a zip archive")
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("readme", "hello")
    assert one_sentence(tinyimagenet.read, broken).startswith(f"{broken} holds no wnids.txt; give the official")
    raw = bytearray(write_zip(tmp_path, files()).read_bytes())
    at = raw.find(jpeg(10)) + 100
    raw[at] ^= 1
    broken.write_bytes(raw)
    assert "cannot be read as a zip archive (Bad CRC-32" in one_sentence(tinyimagenet.read, broken)


def test_a_set_without_training_images_or_with_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: raw for name, raw in files().items() if not name.startswith("train")}
    told = one_sentence(tinyimagenet.read, write_zip(tmp_path, some))
    assert "has 0 training and 2 validation images, expected some" in told
    monkeypatch.setattr(tinyimagenet, "MAX_IMAGES", 7)
    told = one_sentence(tinyimagenet.read, write_zip(tmp_path, files()))
    assert "has 6 training and 2 validation images, expected some and at most 7" in told
