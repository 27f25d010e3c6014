"""Files of separated values as spreadsheets write them: encoding, separator and decimal sign are found, and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.programs import Module

needs("pyarrow", "numpy")

Read = Callable[..., Any]


@pytest.fixture(scope="module")
def tables(module: Module) -> ModuleType:
    return module("_tables")


@pytest.fixture
def read(tables: ModuleType, tmp_path: Path) -> Read:
    def made(content: str | bytes, encoding: str = "utf-8", target: str = "y") -> Any:
        path = tmp_path / "train.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return tables.read_files([str(path)], tables.How(target=target), "the channel train")

    return made


@pytest.mark.parametrize(
    ("content", "encoding", "said"),
    [
        ("y,x\n1,2.5\n3,4\n", "utf-8-sig", ""),
        ("y,x\n1,2.5\n3,4\n", "utf-16", "its encoding is UTF-16"),
        ("y;x\n1;2.5\n3;4\n", "utf-8", "separated by ';'"),
        ("y;x\n1;2,5\n3;4\n", "utf-8", "x has a comma as decimal sign, as in 2,5"),
        ("1;2,5\n3;4,0\n", "utf-8", "separated by ';'"),
        ("y\tx\n1\t2.5\n3\t4\n", "utf-16", "separated by tabs"),
        ("y|x\n1|2.5\n3|4\n", "utf-8", "separated by '|'"),
        ("y x\n1 2.5\n3 4\n", "utf-8", "separated by spaces"),
        ("sep=;\r\ny;x\r\n1;2.5\r\n3;4\r\n", "utf-8", ""),
        ("sep=;\ny;x\n1;2,5\n3;4\n", "utf-8", "x has a comma as decimal sign"),
        ("y,x\r1,2.5\r3,4\r", "utf-8", ""),
        ('"y","x"\n"1","2.5"\n"3","4"\n', "utf-8", ""),
    ],
)
def test_a_table_is_the_same_however_it_is_written(
    read: Read, content: str, encoding: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read(content, encoding, "y" if "y" in content else "")

    assert [values.tolist() for values in table.columns.values()] == [[2.5, 4.0]]
    assert table.target.tolist() == [1.0, 3.0]
    noted = capsys.readouterr().err
    assert said in noted if said else "note:" not in noted


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("cp1252", ["Müller", "Schröder", "Groß"]),
        ("cp1251", ["Москва", "Казань", "Самара"]),
        ("gb18030", ["北京", "上海"]),
        ("cp1250", ["Łódź", "Kraków", "Gdańsk"]),
        ("shift_jis", ["東京", "大阪"]),
        ("cp1253", ["Αθήνα", "Πάτρα"]),
    ],
)
def test_texts_of_another_encoding_are_read_and_said(
    read: Read, encoding: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("charset_normalizer")
    rows = "".join(f"{at},{words[at % len(words)]}\n" for at in range(40))

    table = read(f"y,name\n{rows}", encoding)

    assert set(table.columns["name"].tolist()) == set(words)
    assert "its encoding is not UTF-8; read as" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("y;x\n1;1,234\n2;5,678\n", ""),  # of few values it may be a category: as before
        ("y;x\n" + "".join(f"{n};{n + 1},{100 + n}\n" for n in range(20)), "a number with a sign or separators"),
        (b"PK\x03\x04rest", "an Excel or zip file: save the table as CSV or Parquet"),
        ('[{"y": 1}]', "is JSON"),
        ("<html>Access denied</html>", "is HTML or XML, not a table"),
        ("y,x\n1,2\n\0\0\0\n", "holds zero bytes"),
        (b"y,x\n1,\x00\n", "holds zero bytes, the first in line 2"),
        ('y,x\n1,"a\nb"\n2,"c\n3,d\n', "train.csv, line 4: a quote is opened here that is never closed"),
        ('sep=;\ny;x;z\n1;a;1\n2;"c;2\n3;d;3\n', "train.csv, line 4: a quote is opened here that is never closed"),
        ('y,"x\n1,2\n', "train.csv, line 1: a quote is opened here that is never closed"),
        ("y,x\n" + 9999 * "1,abcdefgh\n" + '2,"c\n3,d\n', "train.csv, line 10001: a quote is opened here"),
        (b"y,x\n1,2\n2,0.8\xc10.6\n", "is damaged: it holds b'0.8\\xc10.6'"),
    ],
)
def test_what_may_be_two_things_or_none_is_refused(module: Module, read: Read, content: str | bytes, said: str) -> None:
    if not said:
        assert read(content).columns["x"].tolist() == ["1,234", "5,678"]
        return
    with pytest.raises(module("_common").Problem) as raised:
        read(content)
    assert said in str(raised.value) and "train.csv" in str(raised.value)


@pytest.mark.parametrize("cells", ["a;b", "a|b", "x\ty"])
def test_a_separator_within_cells_is_none(read: Read, cells: str) -> None:
    table = read(f"y,tags,x\n1,{cells},2\n2,{cells},3\n")

    assert table.columns["tags"].tolist() == [cells, cells]


def test_numbers_with_zeros_before_them_are_names(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    table = read("y,zip,x\n1,01067,0.5\n2,10115,0\n")

    assert table.columns["zip"].tolist() == ["01067", "10115"]
    assert table.columns["x"].tolist() == [0.5, 0.0]
    assert "row 1: zip is '01067', with a zero before it: its values are names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "separator", "encoding"),
    [("", ";", "utf-8"), ("sep=;\n", ";", "utf-8"), ("sep=,\n", ",", "utf-8"), ("", ",", "utf-16"), ("", "\t", "utf-16"),
     ("", ",", "cp1252"), ("", ";", "cp1252"), ("", "|", "utf-8-sig")],
)  # fmt: skip
def test_texts_are_read_from_every_form(module: Module, tmp_path: Path, head: str, separator: str, encoding: str) -> None:
    pytest.importorskip("charset_normalizer")
    rows = [f'"Schöner Tag Nr. {n}, oder; nicht | doch"{separator}{"ab"[n % 2]}' for n in range(20)]
    (tmp_path / "t.csv").write_bytes((f"{head}text{separator}label\n" + "\n".join(rows) + "\n").encode(encoding))

    found = module("_labelled").load(str(tmp_path), "the channel train", "", "")

    assert found[0].text == "Schöner Tag Nr. 0, oder; nicht | doch"
    assert {label for row in found for label in row.labels} == {"a", "b"} and len(found) == 20


def test_a_line_end_within_the_last_cell_is_no_open_quote(read: Read) -> None:
    assert read('y,x\n1,a\n2,"b\nc"\n').columns["x"].tolist() == ["a", "b\nc"]


@pytest.mark.parametrize("cell", ["2", 200_000 * "a"])
def test_rows_without_cells_hide_no_other_problem(cell: str, read: Read, module: Module) -> None:
    with pytest.raises(module("_common").Problem, match="Expected 2 columns, got 3"):
        read(f"y,x\n1,{cell}\n\n\n3,4,5\n")


def test_an_open_quote_among_texts_is_named(module: Module, tmp_path: Path) -> None:
    with pytest.raises(module("_common").Problem, match=r"^texts.csv, line 3: a quote is opened here that is never closed$"):
        list(module("_separated").rows_of("texts.csv", b'text,label\na,1\n"b,2\nc,3\n'))


def test_an_open_quote_among_rows_to_predict_is_named(module: Module, tmp_path: Path) -> None:
    tables, sparing = module("_tables"), module("_sparing")
    (tmp_path / "new.csv").write_text('y,a,b\n1,x,2\n0,"open,3\n1,z,4\n')
    how = tables.How(target="y", spare=sparing.Spare(lambda table: None))
    with pytest.raises(module("_common").Problem, match=r"new.csv, line 3: a quote is opened here that is never closed$"):
        tables.read_files([str(tmp_path / "new.csv")], how, "predict:")
