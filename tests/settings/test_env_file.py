"""A file of environment variables has the meaning that systemd gives it."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.settings.env_file import EnvFileFault, parse_env_file

CASES = {
    "A=b": {"A": "b"},
    "A=": {"A": ""},
    "A=''": {"A": ""},
    "\n\n  A =  b c  \n": {"A": "b c"},
    "A=b\r\nC=d\r\n": {"A": "b", "C": "d"},
    "A=postgresql:///holdfast?host=/run/postgresql&sslmode=disable": {
        "A": "postgresql:///holdfast?host=/run/postgresql&sslmode=disable"
    },
    "A=$HOME ${HOME} $(id) `id` ; id | id > x * ~ !": {"A": "$HOME ${HOME} $(id) `id` ; id | id > x * ~ !"},
    "A=b #c;d": {"A": "b #c;d"},
    "A=b=c==": {"A": "b=c=="},
    "# A=b\n ; C=d\nE=f": {"E": "f"},
    'A="b c"': {"A": "b c"},
    "A='b \"c\" \\d $e'": {"A": 'b "c" \\d $e'},
    r'A="\"b\" \\ \$c \`d\` \e \n"': {"A": r'"b" \ $c `d` \e \n'},
    'A="b $c `d` #e" ': {"A": "b $c `d` #e"},
    "A='b'\"c\" 'd'": {"A": "bcd"},
    "A='b' c 'd'": {"A": "bc 'd'"},
    "A=b'c' \"d\"": {"A": "b'c' \"d\""},
    "A='b\nc'\nD=e": {"A": "b\nc", "D": "e"},
    'A="b\nc"\nD=e': {"A": "b\nc", "D": "e"},
    "A=b\\\nc\nD=e": {"A": "bc", "D": "e"},
    "A=\\\n  b\nD=e": {"A": "  b", "D": "e"},
    'A="b\\\nc"': {"A": "bc"},
    "A='b\\\nc'": {"A": "b\\\nc"},
    "A=b\\ ": {"A": "b "},
    "A=b\\\\": {"A": "b\\"},
    "A=b\\": {"A": "b"},
    r"A=\'b\' \"c\" \$d \x": {"A": "'b' \"c\" $d x"},
    "A=b\tc\t": {"A": "b\tc"},
    "A=b\nA=c": {"A": "c"},
    "A=é – 你": {"A": "é – 你"},
    "just words\nA=b": {"A": "b"},
    "export A=b\nA-B=c\n1A=d\n=e\nF=g": {"F": "g"},
    "# ends with two backslashes\\\\\nA=b": {"A": "b"},
    "# a backslash \\ inside\nA=b": {"A": "b"},
    "A=\x1b[1m": {"A": "\x1b[1m"},
    "": {},
}


@pytest.mark.parametrize("text", CASES)
def test_a_file_has_the_variables_that_systemd_documents(text: str) -> None:
    assert parse_env_file(text.encode()).variables == CASES[text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A=b\nC='a-secret\nD=e", "line 2 begins a quotation that does not end"),
        (b'A=b\n\nC="a-secret\\"', "line 3 begins a quotation that does not end"),
        (b"A='b' 'a-secret", "line 1 begins a quotation that does not end"),
        (b"# a comment \\\nA=a-secret", "line 1 is a comment that ends with a backslash"),
        (b"A='\n\n'\nB=a-secret\xff", "line 4 is not UTF-8"),
        ("A=1\nB=\ufffe".encode(), "line 2 has a code point that is no character, which systemd refuses"),
        ("A=\U0010ffff".encode(), "line 1 has a code point that is no character, which systemd refuses"),
        ("A=\ufdd0".encode(), "line 1 has a code point that is no character, which systemd refuses"),
        (b"B=a-secret\0", "line 1 has a NUL character"),
    ],
)
def test_what_cannot_be_read_safely_is_refused_without_its_content(content: bytes, message: str) -> None:
    with pytest.raises(EnvFileFault) as caught:
        parse_env_file(content)
    assert str(caught.value) == message


def test_what_is_not_utf_8_in_a_comment_is_no_fault() -> None:
    assert parse_env_file(b"# gr\xfc\xdfe\nA=b").variables == {"A": "b"}


def test_what_systemd_leaves_out_is_named_by_its_line() -> None:
    assert parse_env_file(b"A=b\na-secret\n\nexport C=a-secret\n").left_out == [
        "line 2 has no =, and is left out",
        "line 4 has no valid name before =, and is left out",
    ]


ReadBySystemd = Callable[[bytes], dict[str, str] | None]


@pytest.fixture(scope="module")
def by_systemd() -> ReadBySystemd:
    """The parser of the systemd that is installed; None for a file that it refuses."""
    found = sorted(Path("/usr/lib").glob("*/systemd/libsystemd-shared-*.so"))
    if not found:
        pytest.skip("systemd's library is not installed")
    systemd, c_library = ctypes.CDLL(str(found[-1])), ctypes.CDLL(None)
    texts = ctypes.POINTER(ctypes.c_char_p)
    c_library.fmemopen.restype = ctypes.c_void_p
    c_library.fmemopen.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]
    c_library.fclose.argtypes = [ctypes.c_void_p]
    try:
        systemd.load_env_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(texts)]
        # What a service is not given: names that are none.
        systemd.strv_env_clean_with_callback.argtypes = [texts, ctypes.c_void_p, ctypes.c_void_p]
        systemd.strv_env_clean_with_callback.restype = texts
        systemd.strv_free.argtypes = [texts]
    except AttributeError:
        pytest.skip("this systemd's library has no such parser")

    def read(content: bytes) -> dict[str, str] | None:
        file = c_library.fmemopen(content, len(content), b"r")
        entries = texts()
        failed = systemd.load_env_file(file, b"file", ctypes.byref(entries)) < 0
        c_library.fclose(file)
        if failed:
            return None
        variables: dict[str, str] = {}
        if ctypes.cast(entries, ctypes.c_void_p).value is not None:
            systemd.strv_env_clean_with_callback(entries, None, None)
            for index in itertools.count():
                if entries[index] is None:
                    break
                name, _, value = entries[index].decode().partition("=")
                variables[name] = value
            systemd.strv_free(entries)
        return variables

    return read


def test_systemd_reads_the_same_of_each_case(by_systemd: ReadBySystemd) -> None:
    for text, variables in CASES.items():
        if text:  # an empty file in memory cannot be opened
            assert by_systemd(text.encode()) == variables, text


def test_systemd_reads_the_same_of_files_of_any_characters(by_systemd: ReadBySystemd) -> None:
    draw = random.Random(30)
    characters = "A_b=='\"\\\\\n\n\r#; \t$`é&\x01"
    read = 0
    for _ in range(20_000):
        text = "".join(draw.choice(("A=", "B='", 'C="', "", "", "D")) for _ in range(2))
        text += "".join(draw.choices(characters, k=draw.randint(1, 14))) + draw.choice(("", "\nE=f"))
        try:
            variables = parse_env_file(text.encode()).variables
        except EnvFileFault:
            continue
        read += 1
        assert by_systemd(text.encode()) == variables, text
    assert read > 10_000
