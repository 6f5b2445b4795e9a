"""What the outside may send: bodies, headers, URLs and frames. Nothing of it may break or hold up anything.

Every entry is bytes, made when it is used: some are large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

Made = Callable[[], bytes]


def _body(value: object) -> Made:
    return lambda: json.dumps(value).encode()


BODIES: Mapping[str, Made] = {
    "empty": lambda: b"",
    "blank": lambda: b" \n\t",
    "null": _body(None),
    "true": _body(True),
    "a text": _body("text"),
    "a number": lambda: b"1e400",
    "a large integer": lambda: b'{"limit":' + b"9" * 4_000 + b"}",
    "NaN": lambda: b'{"value": NaN}',
    "an empty list": _body([]),
    "an empty object": _body({}),
    "a cut document": lambda: b'{"contactId": "a',
    "two documents": lambda: b"{}{}",
    "a trailing comma": lambda: b'{"a": 1,}',
    "bytes that are no UTF-8": lambda: b'{"contactId": "\xff\xfe"}',
    "UTF-16": lambda: '{"contactId": "a"}'.encode("utf-16"),
    "a byte order mark": lambda: b"\xef\xbb\xbf{}",
    "half a surrogate": lambda: rb'{"contactId": "\ud800", "conversationId": "\udfff"}',
    "a zero byte": lambda: rb'{"contactId": "\u0000", "conversationId": "\u0000", "task": "\u0000"}',
    "deep lists": lambda: b"[" * 100_000,
    "deep objects": lambda: b'{"a":' * 100_000,
    "deep and whole": lambda: b'{"tenant":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "many unknown properties": _body({f"property{number}": number for number in range(20_000)}),
    "long names": _body({"n" * 100_000: 1}),
    "names that are nearly known": _body({f"contactId{number}": 1 for number in range(2_000)}),
    "a doubled property": lambda: b'{"contactId": "a", "contactId": "b"}',
    "a prototype": lambda: b'{"__proto__": {"admin": true}, "constructor": {}}',
    "wrong types everywhere": _body(
        {
            name: {"a": [None]}
            for name in (
                "contactId",
                "conversationId",
                "channel",
                "task",
                "ts",
                "body",
                "src",
                "language",
                "reason",
            )
        }
    ),
    "an extreme time": _body(
        {
            "contactId": "c",
            "conversationId": "c",
            "messageId": "m",
            "ts": "0001-01-01T00:00:00+14:00",
            "type": "message",
            "src": "user",
            "body": "b",
        }
    ),
    "a long text": _body({"contactId": "c", "conversationId": "c", "reason": "x" * 1_000_000}),
    "a list of a million": lambda: b"[" + b"1," * 500_000 + b"1]",
    "an object of many lists": lambda: b'{"a":[' + b"[]," * 350_000 + b"[]]}",
    "a batch with many faults": _body([{"varId": 1, "extra": number} for number in range(5_000)]),
    "a form": lambda: b"contactId=a&conversationId=b",
    "XML": lambda: b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    "more than a body may have": lambda: b'"' + b"a" * 1_300_000 + b'"',
    "JSON-RPC without an end": lambda: (
        b'{"jsonrpc": "2.0", "id": 1e999, "method": "tools/call", "params": []}'
    ),
}

PATHS: Mapping[str, Made] = {
    "climbing": lambda: b"/v1/../../etc/passwd",
    "climbing, encoded": lambda: b"/v1/flows/%2e%2e%2f%2e%2e%2fetc%2fpasswd/versions",
    "a zero byte": lambda: b"/v1/memory/%00",
    "no UTF-8": lambda: b"/v1/memory/%ff%fe",
    "half an escape": lambda: b"/v1/memory/%",
    "a line break": lambda: b"/v1/prompt/a%0d%0aX-Evil:%201",
    "an absolute URL": lambda: b"http://evil.example/v1/flows",
    "no slash": lambda: b"v1/flows",
    "an asterisk": lambda: b"*",
    "many slashes": lambda: b"/" * 2_000,
    "a long id": lambda: b"/v1/prompt/" + b"a" * 60_000,
    "longer than is taken": lambda: b"/v1/prompt/" + b"a" * 200_000,
    "many parameters": lambda: b"/v1/flows?" + b"a=1&" * 10_000,
    "a doubled parameter": lambda: b"/v1/flows?channel=phone&channel=chat",
    "a huge number": lambda: b"/v1/prompt/a?wait_ms=" + b"9" * 5_000,
    "a negative number": lambda: b"/v1/prompt/a?wait_ms=-1",
    "other digits": lambda: b"/v1/prompt/a?wait_ms=%D9%A1",
}

HEADERS: Mapping[str, Made] = {
    "a long value": lambda: b"x: " + b"a" * 200_000 + b"\r\n",
    "many": lambda: b"".join(b"x-%d: y\r\n" % number for number in range(20_000)),
    "one without an end": lambda: b"x: " + b"a" * 100_000,
    "no colon": lambda: b"nothing\r\n",
    "a blank name": lambda: b" : x\r\n",
    "a folded line": lambda: b"x: a\r\n b\r\n",
    "a zero byte": lambda: b"x: a\x00b\r\n",
    "no text": lambda: b"x: \xff\xfe\r\n",
    "two lengths": lambda: b"content-length: 1\r\ncontent-length: 2\r\n",
    "length and chunks": lambda: b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    "a negative length": lambda: b"content-length: -1\r\n",
    "a huge length": lambda: b"content-length: 99999999999999999999\r\n",
    "an unknown coding": lambda: b"transfer-encoding: gzip, smuggled\r\n",
    "an odd host": lambda: b"host: a b\xc3\xa9/..@evil:99999\r\n",
    "a long key": lambda: b"authorization: Bearer " + b"k" * 60_000 + b"\r\n",
    "a long idempotency key": lambda: b"idempotency-key: " + b"k" * 60_000 + b"\r\n",
    "an empty idempotency key": lambda: b"idempotency-key: \r\n",
    "many etags": lambda: b"if-none-match: " + b'"a",' * 10_000 + b"\r\n",
    "a trace that is none": lambda: b"traceparent: 00-zz\r\n",
    "an upgrade": lambda: b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n",
    "an expectation": lambda: b"expect: 200-maybe\r\n",
}

FRAMES: Mapping[str, Made] = {
    **BODIES,
    "an event of no kind": _body({"event": None, "type": None}),
    "a kind that is a list": _body({"event": ["media"], "type": ["response.done"]}),
    "audio that is no base64": _body(
        {"event": "media", "type": "response.output_audio.delta", "media": {"payload": "é!"}, "delta": "é!"}
    ),
    "audio that is no text": _body(
        {"event": "media", "type": "response.output_audio.delta", "media": {"payload": 1}, "delta": 1}
    ),
    "a long frame of audio": _body(
        {"event": "media", "media": {"payload": "A" * 1_000_000, "timestamp": "x"}}
    ),
    "a time below zero": _body({"event": "media", "media": {"payload": "AAAA", "timestamp": "-1" * 2_000}}),
    "a start without anything": _body({"event": "start"}),
    "a start with anything": _body({"event": "start", "start": {"streamSid": [], "customParameters": "x"}}),
    "a call of no function": _body(
        {"type": "response.output_item.done", "item": {"type": "function_call", "arguments": "{" * 9_000}}
    ),
    "an error of no kind": _body({"type": "error", "error": "x"}),
}

CHAT_FRAMES: Mapping[str, Made] = {
    "a second greeting": _body({"type": "hello", "user": "v", "session": None, "after": None}),
    "a greeting of nobody": _body({"type": "hello", "user": ""}),
    "a session that is none": _body({"type": "hello", "user": "u", "session": "\u0000../" * 9}),
    "a number beyond all": _body({"type": "hello", "user": "u", "session": None, "after": 10**30}),
    "a message without a word": _body({"type": "message", "id": "m", "content": " \u200b "}),
    "a message too long": _body({"type": "message", "id": "m", "content": "x" * 60_000}),
    "an id of zero bytes": _body({"type": "message", "id": "\u0000", "content": "x"}),
    "a cancel of nothing": _body({"type": "cancel", "id": "nothing"}),
    "a yes to nothing": _body({"type": "confirm", "call": "c", "decision": "yes"}),
}


def frames() -> Iterator[tuple[str, bytes]]:
    for name, made in FRAMES.items():
        yield name, made()
