import os

import pytest
from audit_helpers import call, drawn_run, write_run

from apportion.cli.audit_out import check_out
from apportion.errors import InvalidInputError

EARLIER = '{"format": "apportion-audit", "version": 1}'


def refused(out, paths, words):
    with pytest.raises(InvalidInputError, match=words):
        check_out(out, paths)


def test_what_is_audited_is_never_written_to(tmp_path):
    dump = write_run(tmp_path / "dump.csv", drawn_run(0))
    (tmp_path / "link.csv").symlink_to(dump)
    os.link(dump, tmp_path / "twin.csv")
    (tmp_path / "run").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    words = "what is audited"
    for name in ("dump.csv", "link.csv", "twin.csv", "run/../dump.csv"):
        refused(tmp_path / name, [dump], words)
    refused(dump, [tmp_path / "other.csv", tmp_path / "link.csv"], words)
    for name in ("run", "run/new.json", "run/deep/new.json", "alias/new.json"):
        refused(tmp_path / name, [tmp_path / "run"], words)
    refused(tmp_path / "run" / "new.json", [tmp_path / "alias"], words)
    (tmp_path / "run" / "old.json").write_text(EARLIER)
    refused(tmp_path / "run" / "old.json", [tmp_path / "run"], words)


@pytest.mark.parametrize("content", ["", "prompt,reward\n", "[]", "{}", '{"format": "x"}', "\x00"])
def test_other_files_are_never_overwritten(content, tmp_path):
    (tmp_path / "notes").write_text(content)
    refused(tmp_path / "notes", [tmp_path / "dump.csv"], "no audit.*another file")
    (tmp_path / "new.json.tmp").write_text(content)
    refused(tmp_path / "new.json", [tmp_path / "dump.csv"], "no audit.*another file")


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path, [tmp_path / "dump.csv"], "what is audited|is a folder")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "gone.json", [tmp_path / "dump.csv"], "no audit")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", [tmp_path / "dump.csv"], "no audit")


def test_new_files_and_earlier_audits_may_be_written(tmp_path):
    dump = write_run(tmp_path / "dump.csv", drawn_run(0))
    check_out(tmp_path / "new" / "audit.json", [dump])
    (tmp_path / "audit.json").write_text(EARLIER)
    check_out(tmp_path / "audit.json", [dump])


def test_the_command_keeps_the_dump(dump, replays, monkeypatch, capsys):
    before = dump.read_bytes()
    code, out, err = call(monkeypatch, capsys, dump, "--out", dump)
    assert (code, out) == (2, "")
    assert err.startswith("apportion: --out ")
    assert len(err.splitlines()) == 1
    assert dump.read_bytes() == before
    assert not replays


def test_an_audit_may_be_written_twice(dump, replays, tmp_path, monkeypatch, capsys):
    for _ in range(2):
        assert call(monkeypatch, capsys, dump, "--out", tmp_path / "audit.json")[0] == 0
