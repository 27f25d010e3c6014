"""One request to the API server. The official client finds the cluster, its credentials and connections; answers stay as
the server sends them, JSON, so that a server newer than the client is understood.

Source: the API conventions of Kubernetes (Status, watch) and the API reference of core/v1.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from trainshed.base.errors import EXIT_UNAVAILABLE, TrainshedError, one_line

from .cluster_wishes import ClusterOptions

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 10.0
MERGE = "application/merge-patch+json"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class KubernetesError(TrainshedError):
    """The cluster refuses, or cannot be found."""

    exit_code = EXIT_UNAVAILABLE


class ApiServerUnreachable(KubernetesError):
    """No answer, or one that says to come again: it may answer later."""


class Refused(KubernetesError):
    """The API server has answered no. code: HTTP's; reason: Kubernetes' word, like `AlreadyExists`."""

    def __init__(self, message: str, code: int, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code, self.reason = code, reason


class ApiServer:
    """A cluster. namespace: where the job is.

    Raises:
        KubernetesError: the client is not installed, or there is no usable configuration.
    """

    def __init__(self, options: ClusterOptions, environ: Mapping[str, str]) -> None:
        if find_spec("kubernetes") is None:
            raise KubernetesError(
                "the Kubernetes client is not installed",
                hint="pip install 'trainshed[kubernetes]', or: trainshed export kubernetes JOB.yaml | kubectl apply -f -",
            )
        self.options, self.environ = options, environ
        self.file = options.kubeconfig or environ.get("KUBECONFIG", "")
        self.namespace = ""
        self._connect()

    def _connect(self) -> None:
        """Reads the configuration, also anew where credentials have run out."""
        from kubernetes import client

        self.configuration = client.Configuration()
        self.configuration.retries = False
        self.configuration.connection_pool_maxsize = 32  # logs and watches each hold a connection
        home = os.path.expanduser("~/.kube/config")
        namespace = ""
        if self.file or os.path.isfile(home) or not os.path.isfile(_SERVICE_ACCOUNT):
            namespace = self._from_file(self.file or home)
        else:
            namespace = self._from_pod()
        self.namespace = self.options.namespace or namespace or "default"
        if not self.configuration.verify_ssl:  # the kubeconfig says so: not once more with each request
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self.pool = client.ApiClient(self.configuration).rest_client.pool_manager

    def _from_file(self, file: str) -> str:
        import yaml
        from kubernetes import config

        if not any(os.path.isfile(part) for part in file.split(os.pathsep)):
            raise KubernetesError(
                f"there is no kubeconfig: {file} does not exist", hint="name it: kubernetes.kubeconfig, or KUBECONFIG"
            )
        context = self.options.context or None
        try:
            # persist_config: a token that is fetched anew is written back by kubectl, never by us.
            config.load_kube_config(file, context=context, client_configuration=self.configuration, persist_config=False)
            known, current = config.list_kube_config_contexts(file)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            said = one_line(str(error).partition("\n")[0]) or type(error).__name__
            raise KubernetesError(
                f"the kubeconfig {file} cannot be used: {said}", hint="kubectl config get-contexts shows what it has"
            ) from None
        chosen = next((one for one in known if one.get("name") == context), current) or {}
        return str((chosen.get("context") or {}).get("namespace") or "")

    def _from_pod(self) -> str:
        from kubernetes import config

        try:
            config.load_incluster_config(client_configuration=self.configuration)
            with open(_SERVICE_ACCOUNT, encoding="utf-8") as file:
                return file.read().strip()
        except (config.ConfigException, OSError) as error:
            raise KubernetesError(f"this pod's service account cannot be used: {error}") from None

    @property
    def address(self) -> str:
        """Of the API server."""
        return str(self.configuration.host)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        """One request and the whole answer.

        Args:
            path: like `/api/v1/namespaces/x/pods`. kind: the body's media type.

        Raises:
            Refused: the answer is no. ApiServerUnreachable: there is none.
        """
        with self._answer(method, path, query, body, kind, ANSWER_SECONDS) as response:
            try:
                answer = json.loads(response.read() or b"{}")
            except ValueError:
                raise ApiServerUnreachable(
                    f"{self.address} does not speak Kubernetes' language: is it an API server?"
                ) from None
        return answer if isinstance(answer, dict) else {}

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], silence: float) -> Iterator[ResponseStream]:
        """An answer that goes on. Raises as `ask`, also while it is read.

        Args:
            silence: seconds without a byte after which the connection counts as lost.
        """
        with self._answer("GET", path, query, None, "", silence) as response:
            yield ResponseStream(response)

    @contextmanager
    def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, kind: str, silence: float
    ) -> Iterator[Any]:
        import urllib3

        response: Any = None
        url = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            for again in (False, True):
                response = self.pool.request(
                    method,
                    url,
                    body=data,
                    headers=self._headers(kind if data else ""),
                    timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=silence),
                    preload_content=False,
                )
                if response.status != 401 or again:
                    break
                response.release_conn()
                self._connect()  # short-lived credentials
            if response.status >= 400:
                raise _problem(response.status, response.read(), self.namespace)
            yield response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerUnreachable(f"the API server at {self.address} does not answer: {_words(error)}") from None
        finally:
            if response is not None:
                response.close()  # a stream holds more than was read

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Accept": "application/json, */*", "User-Agent": "trainshed"}
        if kind:
            headers["Content-Type"] = kind
        auth = self.configuration.auth_settings().get("BearerToken")
        if auth and auth.get("value"):
            headers["Authorization"] = str(auth["value"])
        return headers


class ResponseStream:
    """Bytes of an answer as they come."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.socket = getattr(getattr(response, "connection", None) or getattr(response, "_connection", None), "sock", None)

    def blocks(self) -> Iterator[list[bytes]]:
        """Whole lines with their ends, as many at a time as have come; a line that is cut off is dropped."""
        pending: list[bytes] = []
        for data in self.response.stream(1 << 16):
            whole, newline, rest = data.rpartition(b"\n")
            if newline:
                yield [line + b"\n" for line in b"".join((*pending, whole)).split(b"\n")]
                pending = []
            pending.append(rest)

    def end(self) -> None:
        """Ends it from another thread."""
        if self.socket is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


def _problem(status: int, body: bytes, namespace: str) -> KubernetesError:
    """What an answer of 400 or more means; the body is a Status object where the API server itself has answered."""
    try:
        told = json.loads(body)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    text = one_line(str(told.get("message") or body.decode("utf-8", "replace")[:300] or f"HTTP {status}"))
    if status in (429, 500, 502, 503, 504):
        return ApiServerUnreachable(f"the API server asks for patience: {text}")
    hint = ""
    if status == 401:
        hint = "the credentials are refused: log in again, and try `kubectl get pods`"
    elif status == 403 and "exceeded quota" not in text:
        hint = (
            f"the account may not do this in the namespace {namespace}: it needs create, get, list, watch, patch and delete "
            "of jobs, create and get of configmaps, secrets and services, all but create of pods, and get of pods/log"
        )
    elif status == 404 and text.startswith("namespaces "):
        hint = "kubernetes.namespace names it; `kubectl get namespaces` lists them"
    return Refused(f"the cluster refuses: {text}", status, str(told.get("reason") or ""), hint)


def _words(error: BaseException) -> str:
    """What went wrong on the way, without the library's own names."""
    inner: Any = error
    while getattr(inner, "reason", None) is not None and isinstance(inner.reason, BaseException):
        inner = inner.reason
    cause = inner.__cause__ or inner.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return one_line(cause.strerror)
    if isinstance(inner, OSError) and inner.strerror:
        return one_line(inner.strerror)
    text = one_line(str(inner))
    return text.rpartition(": ")[2] if "object at 0x" in text else text or type(inner).__name__
