"""Loads in the parent of all forked processes what a first turn loads, so that a fork begins at once. No threads."""

import gc
import warnings

import langchain_mongodb.chat_message_histories  # noqa: F401  # the peer

from gatekit import jobs
from gatekit.systems import SYSTEMS, Place, config, echo

warnings.simplefilter("ignore")
system = SYSTEMS["memkit"]()
system.chain(echo, system.histories(Place("sqlite", ":memory:"))).invoke("warm", config("s1"))
assert jobs
gc.collect()
gc.freeze()  # else the first collection in a fork writes to every page that it shares with the parent, for 80 ms
