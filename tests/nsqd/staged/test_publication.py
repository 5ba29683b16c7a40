"""The intent of a publication, and what it holds. Publishing as a whole is in test_staging_model.py."""

from __future__ import annotations

import json
from pathlib import Path

from nsquark.nsqd.staged.publication import Intent, Part, Publication, Share, _stored
from tests.nsqd.harness import Clock, Harness, Publisher


def test_an_intent_reads_back() -> None:
    intent = Intent(7, 123, [Part(0, "a", 10), Part(1, "b", 20)], {"t": Share(5, 100, 3)}, "a note")
    assert Intent.from_json(json.loads(json.dumps(intent.as_json()))) == intent


def test_the_ids_in_the_log_say_how_much_is_stored(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    topic.publish([b"before"], 0, Publisher())
    harness.turn.run()
    first = topic.log.reserve_ids(10)
    files = [(segment.path, segment.start, segment.size) for segment in topic.log.segments]
    assert not _stored(files, first, 10)
    harness.close()


def test_the_log_is_held_until_the_publication_is_released(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    intent = Intent(1, 0, [], {"t": Share(0, 0, 0), "gone": Share(0, 0, 0)})
    publication = Publication(harness, tmp_path, intent)  # type: ignore[arg-type]
    assert topic.holds == {publication: 0}
    publication.release()
    assert not topic.holds
    harness.close()
