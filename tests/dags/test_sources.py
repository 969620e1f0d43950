"""Sources and their namespaces."""

from __future__ import annotations

import json

import pytest

from dispatch_airflow import sources
from dispatch_airflow.home import HOME_VARIABLE, Home, ParameterError
from dispatch_airflow.sources import Source, namespace_of


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """An environment that names a home and nothing else."""
    for name in (sources.SOURCE_VARIABLE, sources.SOURCES_VARIABLE, sources.SETTINGS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))


def test_without_a_variable_logs_are_dropped_into_the_home(tmp_path):
    assert sources.configured() == [Source("", f"{tmp_path}/incoming")]


def test_each_source_has_a_dag_and_a_namespace_of_its_own(monkeypatch):
    monkeypatch.setenv(sources.SOURCE_VARIABLE, "s3://logs/main")
    monkeypatch.setenv(sources.SETTINGS_VARIABLE, "/etc/audit.conf")
    more = {
        "orders": "s3://logs/orders",
        "eu_1": {
            "source": "/mnt/eu",
            "connection": "eu",
            "settings_file": "/etc/eu.conf",
            "follow_links": True,
        },
    }
    monkeypatch.setenv(sources.SOURCES_VARIABLE, json.dumps(more))
    main, orders, eu = sources.configured()
    assert [(source.dag_id, source.namespace) for source in (main, orders, eu)] == [
        ("dispatch_audit", ""),
        ("dispatch_audit_orders", "sources/orders"),
        ("dispatch_audit_eu_1", "sources/eu_1"),
    ]
    assert orders == Source("orders", "s3://logs/orders", settings_file="/etc/audit.conf")
    assert eu == Source("eu_1", "/mnt/eu", "eu", "/etc/eu.conf", True)
    assert sources.source_of("dispatch_audit_orders") == orders
    with pytest.raises(ParameterError, match="names no source of the DAG 'dispatch_audit_gone'"):
        sources.source_of("dispatch_audit_gone")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orders", "is no JSON"),
        ('["s3://logs"]', "must be a JSON object"),
        ('{"Orders": "s3://logs"}', "source 'Orders': a name has lower-case letters"),
        ('{"maintenance": "s3://logs"}', "source 'maintenance': a name"),
        ('{"a": " "}', "source 'a': give its URL"),
        ('{"a": {"url": "s3://logs"}}', "source 'a': give its URL"),
        (
            '{"a": {"source": "s3://logs", "conection": "x"}}',
            "unknown field 'conection'; there are connection",
        ),
        ('{"a": {"source": "s3://logs", "connection": 7}}', "connection is 7; give a text"),
        ('{"a": {"source": "s3://logs", "follow_links": "no"}}', "follow_links is 'no'; give true or false"),
    ],
)
def test_what_is_no_list_of_sources_is_named(monkeypatch, text, says):
    monkeypatch.setenv(sources.SOURCES_VARIABLE, text)
    with pytest.raises(ParameterError, match=says):
        sources.configured()


KNOWN = [Source("", "/data/logs"), Source("orders", "s3://logs/orders", settings_file="/etc/a.conf")]


@pytest.mark.parametrize(
    ("url", "settings_file", "namespace"),
    [
        ("/data/logs", None, ""),
        ("/data/logs/", "", ""),
        (" /data/x/../logs", None, ""),
        ("s3://logs/orders/", "/etc/a.conf", "sources/orders"),
    ],
)
def test_a_source_is_known_by_its_address_however_it_is_written(url, settings_file, namespace):
    assert namespace_of(url, settings_file, KNOWN) == namespace


def test_whatever_else_a_run_reads_has_a_namespace_of_its_own():
    others = [
        ("/data/logs", "/etc/b.conf"),
        ("/data/logs2", None),
        ("s3://logs/orders", None),
        ("s3://logs/orders/2026", "/etc/a.conf"),
        ("s3://other/orders", "/etc/a.conf"),
        ("/", None),
        ("s3://" + "x" * 3_000, None),
        ("/data/Protokolle für <script>", None),
    ]
    found = [namespace_of(url, settings_file, KNOWN) for url, settings_file in others]
    assert len(set(found)) == len(others)
    for namespace in found:
        assert sources.is_namespace(namespace), namespace
        assert namespace.startswith("ad-hoc/")
    assert found == [namespace_of(url, settings_file, KNOWN) for url, settings_file in others]


@pytest.mark.parametrize(
    "text", ["", "reports", "sources/", "sources/a/b", "ad-hoc/..", "sources/A", "other/a", "sources/a\n"]
)
def test_nothing_else_is_a_namespace(text):
    assert not sources.is_namespace(text)


def test_the_namespaces_of_a_home_are_those_that_it_holds(tmp_path):
    home = Home(tmp_path)
    assert sources.namespaces(home) == [""]
    for namespace in ("ad-hoc/eu-7", "sources/orders", "sources/.hidden"):
        (home.within(namespace).warehouse / "x").write_text("")
    assert sources.namespaces(home) == ["", "sources/orders", "ad-hoc/eu-7"]
    assert home.within("sources/orders").warehouse.local == tmp_path / "sources" / "orders" / "warehouse"
