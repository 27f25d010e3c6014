"""Cells of tables: names keep each digit in every format, and a guess about a column is held against the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Train

needs("pyarrow", "numpy")
pyarrow: Any = Lazy("pyarrow")
parquet: Any = Lazy("pyarrow.parquet")

Read = Callable[..., Any]
LONG = [1234567890123456780 + one for one in range(4)]


@pytest.fixture(scope="module")
def tables(module: Module) -> ModuleType:
    return module("_tables")


@pytest.fixture
def read(tables: ModuleType, tmp_path: Path) -> Read:
    """Reads contents, one a file (CSV, or columns of Parquet), as `How` says."""

    def made(*contents: str | dict[str, Any], **how: Any) -> Any:
        files = [tmp_path / f"{at}.{'csv' if isinstance(one, str) else 'parquet'}" for at, one in enumerate(contents)]
        for file, content in zip(files, contents, strict=True):
            if isinstance(content, str):
                file.write_text(content)
            else:
                parquet.write_table(pyarrow.table(content), file)
        return tables.read_files([str(file) for file in files], tables.How(**how), "the channel train")

    return made


def refused(module: Module, read: Read, *contents: Any, **how: Any) -> str:
    with pytest.raises(module("_common").Problem) as raised:
        read(*contents, **how)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int64", "uint64", "decimal128(20, 0)", "string", "dictionary", "csv"])
def test_a_name_has_each_digit_in_every_format(read: Read, kind: str) -> None:
    if kind == "csv":
        content: Any = "y,shop\n" + "".join(f"1,{one}\n" for one in LONG)
    else:
        types = {"decimal128(20, 0)": lambda: pyarrow.decimal128(20, 0), "dictionary": pyarrow.int64}
        shop = pyarrow.array(LONG).cast(types.get(kind, getattr(pyarrow, kind, None))())
        content = {"y": [1] * 4, "shop": shop.dictionary_encode() if kind == "dictionary" else shop}

    assert read(content, text=("shop",)).columns["shop"].tolist() == [str(one) for one in LONG]


def test_names_are_the_same_in_two_formats(read: Read) -> None:
    """pandas writes whole numbers of a column with a gap as 7.0."""
    csv = read("y,a,b,c\n1,7.0,007,1.10\n0,,7,1.1\n", names=True)
    columns = {"y": [1, 0], "a": [7.0, None], "b": ["007", "7"], "c": ["1.10", "1.1"]}

    assert {name: values.tolist() for name, values in csv.columns.items()} == {
        name: values.tolist() for name, values in read(columns, names=True).columns.items()
    }
    assert csv.columns["a"].tolist() == ["7", None] and csv.columns["b"].tolist() == ["007", "7"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"y": [1, 0], "user": [float(LONG[0]), None]}, "row 1: user is 1.2345678901234568e+18, a floating point number"),
        ("y,user\n1,1.23457E+18\n0,5\n", "row 1: user is '1.23457E+18', an id without its last digits, as spreadsheets"),
        (
            "y,user\n1,9007199254740992.0\n0,5.0\n",
            "row 1: user is 9007199254740992.0, a floating point number that has lost",
        ),
    ],
)
def test_names_without_their_last_digits_are_refused(module: Module, read: Read, content: Any, said: str) -> None:
    assert said in refused(module, read, content, names=True)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_numbers_that_would_become_one_are_refused(module: Module, read: Read, form: str) -> None:
    content: Any = {"y": [1, 0, 1, 0], "shop": LONG}
    if form == "csv":
        content = "y,shop\n" + "".join(f"1,{one}\n" for one in LONG)
    said = refused(module, read, content)
    assert f"row 2: shop is {LONG[1]}, and {LONG[0]} elsewhere: one number; categorical_columns takes names" in said
    assert read({"y": [1, 0], "when": [10**18, 2 * 10**18]}).columns["when"].tolist() == [1e18, 2e18]


def test_classes_keep_each_digit(module: Module, read: Read) -> None:
    columns = module("_columns")
    table = read({"y": LONG, "a": [1, 2, 3, 4]}, classes=True)
    values = columns.Target.values(table, "multi:softprob")

    target = columns.Target.of("y", "multi:softprob", values, None)
    assert [target.class_of(label) for label in target.labels(table, [0, 1, 2, 3])] == [str(one) for one in LONG]


def test_rows_to_predict_have_the_categories_of_the_training(module: Module, tmp_path: Path, started_here: Train) -> None:
    """A column that is text in the training data is text where all of its values happen to be numbers."""
    needs("xgboost")
    (tmp_path / "train.csv").write_text(
        "y,shop,size\n" + "".join(f"{n % 2},{['A7', 'B8', '12'][n % 3]},{n}\n" for n in range(30))
    )
    (tmp_path / "rows.csv").write_text("shop,size\n12,3\n12,4\n")
    started_here("tabular", "--train", "train.csv", "--objective", "binary:logistic", "--num_round", 1)
    assert len(started_here("tabular", "--predict", "rows.csv").splitlines()) == 2


def test_categories_that_the_training_has_not_are_noted(
    module: Module, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    features = module("_columns").Features.of(read("y,shop,size\n1,A7,2\n0,B8,3\n"))
    features.check(read("y,shop,size\n1,A7,2\n0,C9,5\n1,,7\n"), "the channel test")
    said = "note: the channel test: shop: 1 of its values, as 'C9', are not in the training data, and count as missing\n"
    assert capsys.readouterr().err == said


def test_whole_numbers_that_32_bits_do_not_hold_are_noted(
    module: Module, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    module("_columns").Features.of(read({"y": [1, 0], "id": [123456785, 123456787], "size": [0.1, 0.2]}))
    said = capsys.readouterr().err
    assert "note: id has 2 different whole numbers, and 1 in the 32 bits of a model" in said and "size" not in said


# --- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "rows", "columns", "noted"),
    [
        ("y,a,b", "1,x,2", ["a", "b"], ""),
        (",y,a", "0,1,2;1,0,3;2,1,4", ["a"], "the header gives column 1 no name: the numbers of rows, which pandas writes"),
        ("Unnamed: 0,y,a", "0,1,2;1,0,3", ["a"], "column 1 the name Unnamed: 0: the numbers of rows"),
        ("y,a,b,", "1,2,3,;0,2,3,", ["a", "b"], "the header gives column 4 no name: no values; left out"),
        ("yes,red", "no,blue;yes,blue", ["f0"], ""),  # a row like those below it
    ],
)
def test_a_first_line_is_judged_by_what_is_below(
    read: Read, head: str, rows: str, columns: list[str], noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read("\n".join([head, *rows.split(";")]) + "\n")

    assert list(table.columns) == columns and table.rows == rows.count(";") + 1 + (head == "yes,red")
    assert noted in capsys.readouterr().err


def test_pandas_count_of_rows_in_parquet_is_left_out(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    table = read({"y": [1, 0, 1], "a": [4, 5, 7], "__index_level_0__": [0, 1, 2]})
    assert list(table.columns) == ["a"] and "__index_level_0__" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("y,a,a\n1,2,3\n0,2,3\n", "two columns have the name 'a' in the header: rename one"),
        ("y,,b\n1,2,3\n0,5,3\n", "the header has no name for column 2: write one into the first line"),
        ("y,2019,2020\n1,2,3\n0,5,3\n", "its first line is neither a header nor a row: 'y' stands above numbers, and 2019"),
    ],
)
def test_half_of_a_header_is_refused(module: Module, read: Read, content: str, said: str) -> None:
    assert said in refused(module, read, content)


def test_years_are_names_of_columns_where_the_target_is_named(read: Read) -> None:
    assert list(read("y,2019,2020\n1,2,3\n0,5,3\n", target="y").columns) == ["2019", "2020"]


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", ["1,0{}", "${}.20", "{},50 €", "{}%", "1 0{}", "CHF 1'0{}", "({}.20)", "\u2212{}", "1.0{},75", "{} %"]
)
def test_numbers_in_another_spelling_are_refused(module: Module, read: Read, cell: str) -> None:
    rows = "".join(f'{n % 2},"{cell.format(10 + n)}"\n' for n in range(30))
    said = refused(module, read, f"y,price\n{rows}")
    assert "row 1: price is " in said and "a number with a sign or separators: write it as in -1234.5" in said


@pytest.mark.parametrize("form", ["1_0{}", "ARABIC", "FULLWIDTH", "ARABIC comma"])
@pytest.mark.parametrize("others", [0, 10, 29])
@pytest.mark.parametrize("head", ["y,size\n", ""])
def test_numbers_in_other_digits_are_refused(module: Module, read: Read, form: str, others: int, head: str) -> None:
    def cell(number: int) -> str:
        zero = {"A": 0x660, "F": 0xFF10}.get(form[0])
        digits = str(number) if zero is None else "".join(chr(zero + int(digit)) for digit in str(number))
        return form.format(digits) if zero is None else digits + "\u066b" * (form[-1] == "a") + digits

    rows = "".join(f"{n % 2},{n if n < others else cell(n)}\n" for n in range(30))
    said = refused(module, read, head + rows)
    assert (
        f"row {others + 1}: {'size' if head else 'f0'} is {cell(others)!r}, a number in digits of another script or" in said
    )
    assert "or name the column in categorical_columns" in said
    assert set(read(head + rows, text=("size" if head else "f0",)).columns["size" if head else "f0"]) >= {cell(29)}


def test_a_target_in_other_digits_is_refused(module: Module, read: Read) -> None:
    said = refused(module, read, "y,a\n\uff11,2\n\uff12,3\n", classes=True, target="y")
    assert "row 1: y is '\uff11', a number in digits of another script" in said and "categorical" not in said


def test_a_name_with_other_digits_is_a_category(read: Read) -> None:
    assert set(read("y,name\n" + "1,\uff21\uff11\n0,a_1\n" * 9).columns["name"]) == {"\uff21\uff11", "a_1"}


@pytest.mark.parametrize("cell", ["A{}", "2024-W{}", "{}-17", "1.2.{}b", "{} kg"])
def test_other_texts_with_digits_are_noted_alone(
    module: Module, read: Read, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{n % 2},{cell.format(10 + n)}\n" for n in range(20))
    module("_columns").Features.of(read(f"y,code\n{rows}"))
    assert "note: code is text, with 20 different values in 20 rows: hardly categories" in capsys.readouterr().err


def test_few_spellings_are_categories(read: Read) -> None:
    assert set(read("y,rate\n" + "1,5%\n0,7%\n" * 9).columns["rate"]) == {"5%", "7%"}


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize("cell", ["red", "3"])
def test_a_column_without_values_in_one_part_is_as_in_the_others(read: Read, empty: int, cell: str) -> None:
    parts = ["y,c,b\n1,,2\n0,,2\n", f"y,c,b\n1,{cell},2\n0,{cell},2\n"]
    values = read(*parts[:: 1 if empty == 0 else -1]).columns["c"].tolist()

    there = values[2:] if empty == 0 else values[:2]
    assert there == (["red"] * 2 if cell == "red" else [3.0] * 2)
    assert read({"y": [1], "c": pyarrow.nulls(1)}, {"y": [0], "c": ["red"]}).columns["c"].tolist() == [None, "red"]


def test_a_column_without_values_on_one_host_is_as_on_the_others(module: Module, read: Read) -> None:
    features = module("_columns").Features
    here, there = features.of(read("y,c,b\n1,,2\n")), features.of(read("y,c,b\n1,red,2\n"))

    assert features.common([here, there]).categories == {"c": ["red"]} == features.common([there, here]).categories
    assert features.common([here, there]).matrix(read("y,c,b\n1,,2\n"), [0])[0, 1] == 2


def test_text_in_one_part_and_numbers_in_another_are_refused(module: Module, read: Read) -> None:
    said = refused(module, read, "y,c,b\n1,red,2\n", "y,c,b\n1,3,2\n")
    assert "c is text in " in said and "0.csv, and numbers in " in said
