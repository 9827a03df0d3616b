"""The part of the Kubernetes API that the Dask operator uses, in memory: python kubernetes_api.py PORT

It supports lists, watches, label selectors, merge patches, finalizers, and garbage collection by owner. It runs no pods:
the client acts as the kubelet. It needs aiohttp alone, so it runs in the operator's environment.
"""

import asyncio
import json
import sys
import time
from typing import Any
from uuid import uuid4

from aiohttp import web

Object = dict[str, Any]
DASK = "kubernetes.dask.org/v1"
KINDS = {
    # group and version: plural: kind
    "v1": {"pods": "Pod", "services": "Service", "events": "Event", "namespaces": "Namespace", "configmaps": "ConfigMap"},
    "apps/v1": {"deployments": "Deployment"},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    DASK: {
        "daskjobs": "DaskJob",
        "daskclusters": "DaskCluster",
        "daskworkergroups": "DaskWorkerGroup",
        "daskautoscalers": "DaskAutoscaler",
    },
}
CLUSTER_WIDE = ("namespaces", "customresourcedefinitions")


def _discovery(version: str) -> Object:
    resources = []
    for plural, kind in KINDS[version].items():
        common = {"kind": kind, "namespaced": plural not in CLUSTER_WIDE, "singularName": kind.lower(), "shortNames": []}
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources += [
            {**common, "name": plural, "verbs": verbs},
            {**common, "name": f"{plural}/status", "verbs": ["get", "patch", "update"]},
        ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _groups() -> Object:
    groups = []
    for version in KINDS:
        if "/" in version:
            name, short = version.split("/")
            known = {"groupVersion": version, "version": short}
            groups.append({"name": name, "versions": [known], "preferredVersion": known})
    return {"kind": "APIGroupList", "groups": groups}


def _merged(old: Any, patch: Any) -> Any:
    """Return the object after a merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merged(new.get(key), value)
    return new


def _patched(old: Object, operations: list[Object]) -> Object:
    """Return the object after a JSON patch, RFC 6902, with the operations add, replace, remove and test."""
    new: Object = json.loads(json.dumps(old))
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target: Any = new
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        key: Any = (len(target) if last == "-" else int(last)) if isinstance(target, list) else last
        if operation["op"] == "remove":
            del target[key]
        elif operation["op"] == "add" and isinstance(target, list):
            target.insert(key, operation["value"])
        elif operation["op"] in ("add", "replace"):
            target[key] = operation["value"]
        elif operation["op"] == "test" and (target[key] if isinstance(target, list) else target.get(key)) != operation["value"]:
            raise web.HTTPUnprocessableEntity
    return new


class Api:
    """All objects and their events."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str, str], Object] = {}
        self.events: list[tuple[int, str, str, Object]] = []
        self.changed = asyncio.Condition()

    async def _notify(self, what: str, key: tuple[str, str, str, str], found: Object) -> None:
        found["metadata"]["resourceVersion"] = str(len(self.events) + 1)
        async with self.changed:
            self.events.append((len(self.events) + 1, what, f"{key[0]} {key[1]}", json.loads(json.dumps(found))))
            self.changed.notify_all()

    async def create(self, version: str, plural: str, namespace: str, body: Object) -> web.Response:
        meta = body.setdefault("metadata", {})
        meta.setdefault("name", meta.get("generateName", "") + uuid4().hex[:5])
        key = (version, plural, namespace, meta["name"])
        if key in self.objects:
            return _status(409, "AlreadyExists")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        meta |= {"uid": str(uuid4()), "creationTimestamp": now, "generation": 1}
        if plural not in CLUSTER_WIDE:
            meta["namespace"] = namespace
        self.objects[key] = {"apiVersion": version, "kind": KINDS[version][plural], **body}
        await self._notify("ADDED", key, self.objects[key])
        return web.json_response(self.objects[key], status=201)

    async def change(self, key: tuple[str, str, str, str], patch: Any) -> web.Response:
        old = self.objects[key]
        found = _patched(old, patch) if isinstance(patch, list) else _merged(old, patch)
        if found != self.objects[key]:
            self.objects[key] = found
            await self._notify("MODIFIED", key, found)
        await self._collect(key)
        return web.json_response(found)

    async def delete(self, key: tuple[str, str, str, str]) -> web.Response:
        found = self.objects[key]
        if "deletionTimestamp" not in found["metadata"]:
            found["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            await self._notify("MODIFIED", key, found)
        await self._collect(key)
        return web.json_response(found)

    async def _collect(self, key: tuple[str, str, str, str]) -> None:
        """Remove objects that are marked for deletion and have no finalizers, and then the objects they own."""
        found = self.objects.get(key)
        if found is None or "deletionTimestamp" not in found["metadata"] or found["metadata"].get("finalizers"):
            return
        del self.objects[key]
        await self._notify("DELETED", key, found)
        for other, owned in list(self.objects.items()):
            if any(owner["uid"] == found["metadata"]["uid"] for owner in owned["metadata"].get("ownerReferences", [])):
                await self.delete(other)

    async def watch(self, request: web.Request, version: str, plural: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        seen = int(request.query.get("resourceVersion") or 0)
        until = time.monotonic() + float(request.query.get("timeoutSeconds") or 60)
        while time.monotonic() < until:
            for number, what, where, found in self.events[seen:]:
                seen = number
                if where == f"{version} {plural}" and _fits(found, namespace, request):
                    await response.write(json.dumps({"type": what, "object": found}).encode() + b"\n")
            async with self.changed:
                try:
                    await asyncio.wait_for(self.changed.wait_for(lambda: len(self.events) > seen), 1)  # noqa: B023  # awaited at once
                except TimeoutError:
                    continue
        return response

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["version"]:
            return web.json_response({"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
        if parts == ["api"]:
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if parts == ["apis"]:
            return web.json_response(_groups())
        size = 2 if parts[0] == "api" else 3
        version, rest = "/".join(parts[1:size]), parts[size:]
        if version not in KINDS:
            return _status(404, "NotFound")
        if not rest:
            return web.json_response(_discovery(version))
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name = rest[0], rest[1] if len(rest) > 1 else ""
        if plural not in KINDS[version]:
            return _status(404, "NotFound")
        body = json.loads(await request.read() or b"null")
        if request.method == "POST":
            return await self.create(version, plural, namespace, body)
        if not name:
            if request.query.get("watch") in ("1", "true", "True"):
                return await self.watch(request, version, plural, namespace)
            items = [found for key, found in self.objects.items() if key[:2] == (version, plural) and _fits(found, namespace, request)]
            kind = f"{KINDS[version][plural]}List"
            return web.json_response(
                {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": str(len(self.events))}, "items": items}
            )
        key = (version, plural, namespace, name)
        if key not in self.objects:
            return _status(404, "NotFound")
        if request.method == "DELETE":
            return await self.delete(key)
        if request.method in ("PATCH", "PUT"):
            return await self.change(key, body)
        return web.json_response(self.objects[key])


def _fits(found: Object, namespace: str, request: web.Request) -> bool:
    if namespace and found["metadata"].get("namespace") != namespace:
        return False
    labels = found["metadata"].get("labels", {})
    wanted = [part.split("=") for part in (request.query.get("labelSelector") or "").replace("==", "=").split(",") if part]
    fields = [part.split("=") for part in (request.query.get("fieldSelector") or "").replace("==", "=").split(",") if part]
    named = all(found["metadata"].get(field.removeprefix("metadata.")) == value for field, value in fields)
    return named and all(labels.get(part[0]) == part[1] if len(part) == 2 else part[0] in labels for part in wanted)


def _status(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code}, status=code)


async def _application() -> web.Application:
    api = Api()
    await api.create("v1", "namespaces", "", {"metadata": {"name": "research"}})
    for plural, kind in KINDS[DASK].items():
        names = {"plural": plural, "kind": kind, "singular": kind.lower()}
        spec = {
            "group": DASK.partition("/")[0],
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True}],
        }
        await api.create(
            "apiextensions.k8s.io/v1", "customresourcedefinitions", "", {"metadata": {"name": f"{plural}.{spec['group']}"}, "spec": spec}
        )
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.handle)
    return application


if __name__ == "__main__":
    web.run_app(_application(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
