"""The protocol: a facade, or a port, that answers requests; request and reply are one JSON object each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import IO, Any, Protocol

from ortrain.conformance.drivers import Driver, Failure, NotOffered
from ortrain.conformance.values import decoded, encoded
from ortrain.errors import InvalidArgumentError

PROTOCOL = 1
"""The protocol's version, sent in the reply to `hello`."""


class Connection(Protocol):
    """Anything that answers requests."""

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""


class Service:
    """Answers requests with a driver, and keeps the objects that calls created under the names that the requests give them."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.objects: dict[str, Any] = {}

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the reply: result, error (the facade refused or failed), absent (the language has no such operation) or refused (invalid request)."""
        call = message.get("call")
        if call == "hello":
            return {"result": {"protocol": PROTOCOL, "language": self.driver.language, "operations": self.driver.operations()}}
        if call == "reset":
            self.objects.clear()
            return {"result": None}
        try:
            target = self._object(message["on"]) if "on" in message else None
            arguments = {name: self._argument(value) for name, value in message.get("arguments", {}).items()}
            if not isinstance(call, str):
                raise InvalidArgumentError(f"expected the id of an operation as call, got {call!r}")
        except Exception as error:  # every request gets a reply, whatever it contains
            return {"refused": f"{type(error).__name__}: {error}"}
        return self._reply(call, target, arguments, message)

    def _reply(self, call: str, target: Any, arguments: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        try:
            result = self.driver.call(call, target, arguments)
        except NotOffered:
            return {"absent": call}
        except Failure as failure:
            return {"error": {"name": failure.name, "code": failure.code, "message": failure.message, "shown": failure.shown}}
        except Exception as error:  # an error of the driver or the facade: the case fails and reports it, the service continues
            return {"refused": f"{type(error).__name__}: {error}"}
        try:
            return {"result": encoded(result)}
        except TypeError:
            return {"result": self._kept(str(message.get("as", "object")), result)}

    def _kept(self, name: str, result: Any) -> Any:
        """Keep an object, or each of a list of objects as `name[0]`, `name[1]`…; return the reply's result."""
        if isinstance(result, list):
            return [self._kept(f"{name}[{number}]", item) for number, item in enumerate(result)]
        self.objects[name] = result
        return {"object": name}

    def _object(self, name: Any) -> Any:
        if name not in self.objects:
            raise InvalidArgumentError(f"expected the name of an object that a call made, got {name!r}")
        return self.objects[name]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"object"}:
            return self._object(value["object"])
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        return decoded(value)


def serve(service: Service, requests: IO[str], replies: IO[str]) -> None:
    """Answer one request per line until the input ends; a line that is not a JSON object is refused."""
    for line in requests:
        if not line.strip():
            continue
        try:
            message = json.loads(line)
            reply = service.request(message) if isinstance(message, dict) else {"refused": f"expected a JSON object, got {line.strip()[:80]!r}"}
        except json.JSONDecodeError as error:
            reply = {"refused": f"expected a JSON object per line: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class Port:
    """A port in another language: a program that reads requests from its standard input and writes replies to its standard output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the port's reply. Raises InvalidArgumentError when it is malformed, or when the port has exited."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            reply = json.loads(line)
        except (OSError, json.JSONDecodeError) as error:
            raise InvalidArgumentError(f"expected a reply of one JSON object per line from the port, got {type(error).__name__}: {error}") from error
        if not isinstance(reply, dict):
            raise InvalidArgumentError(f"expected a JSON object from the port, got {line.strip()[:80]!r}")
        return reply

    def close(self) -> None:
        """Close the port's input, which ends the port."""
        self._process.communicate()
