"""MovieLens: the arrays that come out of good files, and the sentence that comes out of bad ones."""

import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedslice.core.errors import UserError
from fedslice.datasets import movielens
from layouts import REAL_DATA, one_sentence, write_movielens


def sentence(path: Path, variant: str = "1m") -> str:
    return one_sentence(movielens.read, path, variant, ends=(".", "?"))  # a name may be guessed at


def put_line(file: Path, line: int, text: str) -> None:
    lines = file.read_bytes().split(b"\n")
    lines[line - 1] = text.encode("latin-1")
    file.write_bytes(b"\n".join(lines))


def equal(a: movielens.Ratings, b: movielens.Ratings) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)


def test_arrays_follow_the_order_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "users.dat").write_text("7::M::56::1::12345\n3::F::1::2::12345-6789\n")
    (tmp_path / "movies.dat").write_bytes("10::A (1999)::Drama\n4::É (1998)::War\n9::C (1)::War\n".encode("latin-1"))
    (tmp_path / "ratings.dat").write_text("3::9::5::978300760\n7::10::1::978300761\n3::10::4::978300762\n")
    found = movielens.read(tmp_path)
    assert (found.users, found.movies) == (2, 3)
    assert found.user.tolist() == [1, 0, 1]
    assert found.movie.tolist() == [2, 0, 0]
    assert found.rating.tolist() == [5, 1, 4]
    assert found.timestamp.tolist() == [978300760, 978300761, 978300762]
    assert found.gender.tolist() == [1, 0]
    assert found.age.tolist() == [6, 0]
    types = {name: getattr(found, name).dtype.name for name in ("user", "movie", "rating", "timestamp")}
    assert types == {"user": "int32", "movie": "int32", "rating": "int8", "timestamp": "int64"}
    assert found.gender.dtype == found.age.dtype == np.int8
    assert found.timestamp.flags.writeable


@pytest.mark.parametrize("variant", ["1m", "100k"])
def test_every_official_place_gives_the_same_arrays(tmp_path: Path, variant: str) -> None:
    name = {"1m": "ml-1m", "100k": "ml-100k"}[variant]
    flat = movielens.read(write_movielens(tmp_path / "flat", variant=variant), variant)
    assert len(flat.user) == 400
    assert set(flat.gender) == {0, 1}
    assert flat.movie.max() < flat.movies == 30
    write_movielens(tmp_path / "inner" / name, variant=variant)
    archive = write_movielens(tmp_path / "zip", variant=variant, zipped=True)
    flat_zip = tmp_path / "anything.zip"
    with zipfile.ZipFile(flat_zip, "w") as out:
        for file in (tmp_path / "flat").iterdir():
            out.write(file, file.name)
    for path in (tmp_path / "inner", archive, archive.parent, flat_zip):
        assert equal(movielens.read(path, variant), flat)


def test_the_years_of_100k_fall_into_the_groups_of_1m(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path, users=8, variant="100k", ratings=100)
    for line, years in enumerate((7, 17, 18, 34, 49, 50, 56, 73), start=1):
        put_line(folder / "u.user", line, f"{line}|{years}|F|writer|12345")
    assert movielens.read(folder, "100k").age.tolist() == [0, 0, 1, 2, 4, 5, 6, 6]


def test_where_both_lie_the_variant_decides(tmp_path: Path) -> None:
    write_movielens(tmp_path, users=5, ratings=50, zipped=True)
    write_movielens(tmp_path, users=6, ratings=50, zipped=True, variant="100k")
    assert movielens.read(tmp_path).users == 5
    assert movielens.read(tmp_path, "100k").users == 6
    (tmp_path / "ml-1m.zip").unlink()
    assert "holds ml-100k, expected ml-1m; ask for variant '100k'" in sentence(tmp_path)
    assert "did you mean '100k'" in sentence(tmp_path, "100K")


def test_windows_line_ends_and_a_missing_last_one_are_read(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path)
    before = movielens.read(folder)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert equal(movielens.read(folder), before)


def test_the_way_line_by_line_gives_the_same_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_movielens(tmp_path)
    fast = movielens.read(folder)
    monkeypatch.setattr(movielens, "_ratings_fast", lambda *_: None)
    assert equal(movielens.read(folder), fast)


BAD_RATINGS = {
    "columns": ("1::2::3", "3 columns found in '1::2::3'", "4 separated by '::'"),
    "more columns": ("1::2::3::4::5", "5 columns", "4 separated by '::'"),
    "tabs": ("1\t2\t3\t4", "1 column found", "4 separated by '::'"),
    "blank line": ("", "1 column found in ''", "4 separated by '::'"),
    "binary": ("\xff\x00\x1a", "1 column", "4 separated by '::'"),
    "word": ("1::{movie}::good::978300760", "the rating is 'good'", "a whole number from 1 to 5"),
    "nan": ("1::{movie}::nan::978300760", "the rating is 'nan'", "a whole number from 1 to 5"),
    "half star": ("1::{movie}::3.5::978300760", "the rating is '3.5'", "a whole number from 1 to 5"),
    "no rating": ("1::{movie}::::978300760", "the rating is ''", "a whole number from 1 to 5"),
    "zero": ("1::{movie}::0::978300760", "the rating is '0'", "a whole number from 1 to 5"),
    "six": ("1::{movie}::6::978300760", "the rating is '6'", "a whole number from 1 to 5"),
    "time": ("1::{movie}::4::9783007.5", "the timestamp is '9783007.5'", "a whole number of seconds"),
    "negative time": ("1::{movie}::4::-5", "the timestamp is '-5'", "a whole number of seconds"),
    "long time": ("1::{movie}::4::" + "9" * 60, "the timestamp is '9999", "a whole number of seconds"),
    "unknown user": ("77::{movie}::4::978300760", "the user id is '77'", "a user listed in users.dat"),
    "negative user": ("-1::{movie}::4::978300760", "the user id is '-1'", "a user listed in users.dat"),
    "nan user": ("NaN::{movie}::4::978300760", "the user id is 'NaN'", "a user listed in users.dat"),
    "huge user": ("9" * 30 + "::{movie}::4::978300760", "the user id is '9999", "a user listed in users.dat"),
    "unknown movie": ("1::999::4::978300760", "the movie id is '999'", "a movie listed in movies.dat"),
    "movie": ("1::1.0::4::978300760", "the movie id is '1.0'", "a movie listed in movies.dat"),
}


@pytest.mark.parametrize("case", BAD_RATINGS)
@pytest.mark.parametrize("line", [1, 123])
def test_a_bad_rating_is_named(tmp_path: Path, case: str, line: int) -> None:
    folder = write_movielens(tmp_path)
    text, found, expected = BAD_RATINGS[case]
    movie = (folder / "movies.dat").read_text("latin-1").split("::")[0]
    put_line(folder / "ratings.dat", line, text.replace("{movie}", movie))
    told = sentence(folder)
    assert told.startswith(f"{folder / 'ratings.dat'}, line {line}: ")
    assert found in told
    assert f"expected {expected}" in told
    assert told.endswith("; correct the line or fetch the file again.")


BAD_TABLES = {
    "gender": ("users.dat", "3::X::25::1::12345", "the gender is 'X'", "'F' or 'M'"),
    "both genders": ("users.dat", "3::FM::25::1::12345", "the gender is 'FM'", "'F' or 'M'"),
    "no gender": ("users.dat", "3::::25::1::12345", "the gender is ''", "'F' or 'M'"),
    "age": ("users.dat", "3::F::26::1::12345", "the age is '26'", "one of the age codes 1, 18, 25"),
    "nan age": ("users.dat", "3::F::nan::1::12345", "the age is 'nan'", "one of the age codes 1, 18, 25"),
    "user columns": ("users.dat", "3::F::25::1", "4 columns", "5 separated by '::'"),
    "user word": ("users.dat", "three::F::25::1::12345", "the user id is 'three'", "a whole number"),
    "user below 0": ("users.dat", "-3::F::25::1::12345", "the user id is '-3'", "a whole number, 0 or more"),
    "user twice": ("users.dat", "2::F::25::1::12345", "user 2 is there already in line 2", "every id once"),
    "movie columns": ("movies.dat", "3::\xc9t\xe9 (1999)", "2 columns", "3 separated by '::'"),
    "movie word": ("movies.dat", "3.0::A (1999)::War", "the movie id is '3.0'", "a whole number"),
    "movie twice": ("movies.dat", "{first}::A (1999)::War", "is there already in line 1", "every id once"),
    "blank line": ("movies.dat", "", "1 column found in ''", "3 separated by '::'"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_user_or_movie_is_named(tmp_path: Path, case: str) -> None:
    folder = write_movielens(tmp_path)
    file, text, found, expected = BAD_TABLES[case]
    put_line(folder / file, 3, text.replace("{first}", (folder / file).read_text("latin-1").split("::")[0]))
    told = sentence(folder)
    assert told.startswith(f"{folder / file}, line 3: ")
    assert found in told
    assert f"expected {expected}" in told


BAD_100K = {
    "rating": ("u.data", "1\t{movie}\t9\t881250949", "the rating is '9'", "a whole number from 1 to 5"),
    "columns": ("u.data", "1 2 3 4", "1 column", r"4 separated by '\t'"),
    "age": ("u.user", "3|200|F|writer|12345", "the age is '200'", "an age from 1 to 120 years"),
    "gender": ("u.user", "3|30|f|writer|12345", "the gender is 'f'", "'F' or 'M'"),
    "genres": ("u.item", "3|A (1999)|01-Jan-1999||http://x|0|1", "7 columns", "24 separated by '|'"),
}


@pytest.mark.parametrize("case", BAD_100K)
def test_a_bad_line_of_100k_is_named(tmp_path: Path, case: str) -> None:
    folder = write_movielens(tmp_path, variant="100k")
    file, text, found, expected = BAD_100K[case]
    movie = (folder / "u.item").read_text("latin-1").split("|")[0]
    put_line(folder / file, 3, text.replace("{movie}", movie))
    told = sentence(folder, "100k")
    assert told.startswith(f"{folder / file}, line 3: ")
    assert found in told
    assert f"expected {expected}" in told


def test_a_user_without_ratings_is_named(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path)
    file = folder / "ratings.dat"
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if not line.startswith(b"9::")]
    file.write_bytes(b"".join(kept))
    told = sentence(folder)
    assert told.startswith(f"{folder / 'users.dat'}, line 9: user 9 has no rating in ratings.dat, expected")


@pytest.mark.parametrize("file", ["users.dat", "movies.dat", "ratings.dat"])
@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file_is_named(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write_movielens(tmp_path)
    (folder / file).write_bytes(content)
    assert f"{folder / file} is empty, expected lines of" in sentence(folder)


def test_a_line_in_an_archive_is_named(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path / "flat")
    put_line(folder / "ratings.dat", 5, "1::2::3")
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"ml-1m/{file.name}")
    assert f"{tmp_path / 'ml-1m.zip'}/ml-1m/ratings.dat, line 5: 3 columns" in sentence(tmp_path / "ml-1m.zip")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in sentence(tmp_path / "nowhere")
    told = sentence(tmp_path)
    assert f"{tmp_path} holds no ratings.dat or ml-1m/ratings.dat or ml-1m.zip" in told
    assert "holds no u.data or ml-100k/u.data or ml-100k.zip" in sentence(tmp_path, "100k")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    assert "other.zip holds no ratings.dat or ml-1m/ratings.dat;" in sentence(tmp_path / "other.zip")
    folder = write_movielens(tmp_path / "part")
    (folder / "movies.dat").unlink()
    assert f"{folder / 'movies.dat'} is missing" in sentence(folder)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def damage(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[400:600] = bytes(200)
    file.write_bytes(raw)


def replace(file: Path) -> None:
    file.write_text("<html>Not found</html>")


@pytest.mark.parametrize("harm", [cut, damage, replace])
def test_a_broken_archive_is_told_in_one_sentence(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    archive = write_movielens(tmp_path, zipped=True)
    harm(archive)
    for path in (archive, tmp_path):
        told = sentence(path)
        assert f"{archive} cannot be read as a zip archive" in told
        assert "expected the whole archive; fetch it again" in told


def test_a_file_that_is_no_archive_is_told(tmp_path: Path) -> None:
    folder = write_movielens(tmp_path)
    assert "ratings.dat cannot be read as a zip archive" in sentence(folder / "ratings.dat")


def rewrite(path: Path, change: Callable[[zipfile.ZipInfo], None]) -> None:
    """Write the archive again with `change` applied to what its directory says of the ratings."""
    folder = write_movielens(path.parent / "flat")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"ml-1m/{file.name}")
        change(archive.getinfo("ml-1m/ratings.dat"))


def test_an_archive_that_claims_an_absurd_size_is_refused(tmp_path: Path) -> None:
    def claim(info: zipfile.ZipInfo) -> None:
        info.file_size = 3 * 1024**3

    rewrite(tmp_path / "ml-1m.zip", claim)
    assert "ml-1m/ratings.dat has 3,221,225,472 bytes, expected at most 67,108,864" in sentence(tmp_path / "ml-1m.zip")


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    def encrypt(info: zipfile.ZipInfo) -> None:
        info.flag_bits |= 1

    rewrite(tmp_path / "ml-1m.zip", encrypt)
    assert "ml-1m.zip cannot be read as a zip archive" in sentence(tmp_path / "ml-1m.zip")


def test_no_damage_gives_anything_but_arrays_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    archive = write_movielens(tmp_path / "zip", zipped=True)
    folder = write_movielens(tmp_path / "flat")
    for file, path in [(archive, archive)] + [(file, folder) for file in sorted(folder.iterdir())]:
        good = file.read_bytes()
        for _ in range(150):
            raw = bytearray(good)
            for at in rng.integers(0, len(raw), rng.integers(1, 4)):
                raw[at] = rng.integers(0, 256)
            file.write_bytes(raw[: len(raw) - int(rng.integers(0, 20))])
            with suppress(UserError):
                movielens.read(path)
        file.write_bytes(good)


@pytest.mark.skipif(not (REAL_DATA / "ml-1m.zip").is_file(), reason="ml-1m.zip is not there (FEDSLICE_DATA)")
def test_the_real_1m() -> None:
    found = movielens.read(REAL_DATA)
    assert (found.users, found.movies, len(found.rating)) == (6040, 3883, 1_000_209)
    assert found.gender.sum() == 4331
    assert len(np.unique(found.movie)) == 3706
    assert np.bincount(found.rating).tolist() == [0, 56174, 107557, 261197, 348971, 226310]
    assert np.bincount(found.user).min() == 20


@pytest.mark.skipif(not (REAL_DATA / "ml-100k.zip").is_file(), reason="ml-100k.zip is not there (FEDSLICE_DATA)")
def test_the_real_100k() -> None:
    found = movielens.read(REAL_DATA, "100k")
    assert (found.users, found.movies, len(found.rating)) == (943, 1682, 100_000)
    assert found.gender.sum() == 670
