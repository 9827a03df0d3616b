"""Certificates that are foreign, expired, not yet valid or misnamed, at both ends of a connection."""

from pathlib import Path

import dask
import pytest
from distributed import Security

from dfact.engine.cluster.certificate_names import ClusterSecurity, bears_name, check_names, checks_names
from tests.tls.authority import Authority, strangers
from tests.tls.connections import dasks_security, listeners, refusal

NAME = "our-cluster"


@pytest.fixture(scope="module")
def own() -> Authority:
    return Authority.make()


@pytest.fixture(scope="module")
def refused(own: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return strangers(own, NAME, tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def member(own: Authority, tmp_path_factory: pytest.TempPathFactory) -> Security:
    return dasks_security(own.issue(tmp_path_factory.mktemp("member") / "own", NAME, "10.0.0.7"))


@pytest.fixture
def checking(unchecked: None) -> None:
    """Names are checked in this process, until the test ends."""
    del unchecked  # restores what was before
    assert not checks_names()
    check_names()
    assert checks_names()


@pytest.mark.usefixtures("checking")
def test_strangers_are_refused_at_both_ends(member: Security, refused: dict[str, Path]) -> None:
    reasons = {"foreign": "verify failed", "expired": "has expired", "not yet valid": "not yet valid"}
    with dask.config.set({"dfact.tls-name": NAME}), listeners(member, *map(dasks_security, refused.values())) as addresses:
        ours, *theirs = addresses
        assert refusal(ours, member) == ""
        for (kind, folder), address in zip(refused.items(), theirs, strict=True):
            assert refusal(ours, dasks_security(folder)), kind
            assert reasons.get(kind, "certificate is not valid for 'our-cluster'") in refusal(address, member), kind


@pytest.mark.usefixtures("unchecked")
def test_dask_alone_accepts_other_names(member: Security, refused: dict[str, Path]) -> None:
    """Without the check the strangers' names would pass, so the tests above see the check and nothing else."""
    with listeners(member, dasks_security(refused["misnamed"])) as (ours, theirs):
        assert refusal(ours, dasks_security(refused["misnamed"])) == ""
        assert refusal(theirs, member) == ""
        assert refusal(ours, dasks_security(refused["expired"])) != ""


def test_a_driver_refuses_a_scheduler_of_another_name(own: Authority, refused: dict[str, Path], tmp_path: Path) -> None:
    folder = own.issue(tmp_path / "driver", NAME)
    driver = ClusterSecurity(
        tls_ca_file=str(folder / "ca.pem"), tls_client_cert=str(folder / "cert.pem"), tls_client_key=str(folder / "key.pem")
    )
    with dask.config.set({"dfact.tls-name": NAME}), listeners(dasks_security(folder), dasks_security(refused["misnamed"])) as addresses:
        assert refusal(addresses[0], driver) == ""
        assert "certificate is not valid for 'our-cluster'" in refusal(addresses[1], driver)


@pytest.mark.usefixtures("checking")
def test_without_a_common_name_certificates_name_addresses(own: Authority, tmp_path: Path) -> None:
    here, elsewhere = (dasks_security(own.issue(tmp_path / address, address)) for address in ("127.0.0.1", "10.0.0.1"))
    with listeners(here, elsewhere) as (ours, theirs):
        assert refusal(ours, here) == ""
        assert refusal(ours, elsewhere) != ""
        assert "IP address mismatch" in refusal(theirs, here)


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        ([("DNS", "our-cluster")], "Our-Cluster", True),
        ([("DNS", "a"), ("DNS", "our-cluster")], "our-cluster", True),
        ([("DNS", "our-cluster.example")], "our-cluster", False),
        ([("DNS", "*")], "our-cluster", False),
        ([("DNS", "127.0.0.1")], "127.0.0.1", False),
        ([("URI", "our-cluster")], "our-cluster", False),
        ([("IP Address", "127.0.0.1")], "127.0.0.1", True),
        ([("IP Address", "0:0:0:0:0:0:0:1\n")], "::1", True),
        ([("IP Address", "127.0.0.10")], "127.0.0.1", False),
        ([], "our-cluster", False),
    ],
)
def test_names_on_a_certificate(names: list[tuple[str, str]], name: str, expected: bool) -> None:
    certificate = {"subject": ((("commonName", name),),), "subjectAltName": tuple(names)}
    assert bears_name(certificate, name) is expected


def test_a_certificate_without_names_bears_none() -> None:
    assert not bears_name({}, "our-cluster")
