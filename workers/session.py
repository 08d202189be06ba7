"""The session of a training script of your own: `from workers.session import session`."""

from __future__ import annotations

from workers.training.script_session import Batches, ScriptExit, ScriptSession, session

__all__ = ["Batches", "ScriptExit", "ScriptSession", "session"]
