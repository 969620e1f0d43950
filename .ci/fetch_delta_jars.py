"""Fetches the four jars of Delta Lake that Spark needs, once, into a folder.

Spark's own resolver (Ivy) finds them, so this file names no address. It resolves these four alone: the other
29 jars that Delta names are part of Spark already, or serve Unity Catalog.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

#: Files in which Linux distributions keep the certificate authorities they trust.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)

#: Group ids (glob patterns) left out: inside pyspark already, or for Unity Catalog only.
EXCLUDED = (
    "com.fasterxml.*", "com.github.*", "com.google.*", "commons-*", "io.airlift", "io.unitycatalog", "jakarta.*",
    "javax.*", "net.java*", "org.*",
)  # fmt: skip


def coordinates() -> list[str]:
    """Maven coordinates of the jars that fit the installed delta-spark and pyspark."""
    delta = version("delta-spark")
    spark_minor = ".".join(version("pyspark").split(".")[:2])
    return [
        f"io.delta:delta-spark_{spark_minor}_2.13:{delta}",
        f"io.delta:delta-storage:{delta}",
        f"io.delta:delta-kernel-api:{delta}",
        f"io.delta:delta-kernel-defaults:{delta}",
    ]


def proxy_options() -> list[str]:
    """JVM options for this machine's proxy, which Java does not take from the environment."""
    options = []
    for scheme in ("http", "https"):
        proxy = urlsplit(os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY") or "")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


def system_certificates_options(work: Path) -> list[str]:
    """JVM options to trust what this machine trusts (its PEM bundle), or none if it has no such bundle."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    from cryptography.x509 import load_pem_x509_certificates

    bundles = [os.environ.get("SSL_CERT_FILE", ""), *SYSTEM_BUNDLES]
    bundle = next((Path(name) for name in bundles if name and Path(name).is_file()), None)
    if bundle is None:
        return []
    with warnings.catch_warnings():  # about old authorities' serial numbers, which only their owners can fix
        warnings.simplefilter("ignore")
        certificates = load_pem_x509_certificates(bundle.read_bytes())
    trusted = [
        pkcs12.PKCS12Certificate(certificate, str(number).encode())
        for number, certificate in enumerate(certificates)
    ]
    store, password = (
        work / "trusted.p12",
        "changeit",
    )  # the certificates are public: the password protects nothing
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(password.encode())))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
        f"-Djavax.net.ssl.trustStorePassword={password}",
    ]


def jars_in(folder: Path) -> list[Path]:
    """The jars of the four that are in ``folder``, with or without the resolver's prefix of the group."""
    names = ["-".join(name.split(":")[1:]) for name in coordinates()]
    return [jar for name in names for jar in sorted(folder.glob(f"*{name}.jar"))[:1]]


def fetch(target: Path) -> None:
    """Puts the jars into ``target``, all or none.

    Raises:
        FileNotFoundError: the resolver ended without all four.
    """
    if target.is_dir() and len(jars_in(target)) == len(coordinates()):
        return  # put there by hand, on a machine without a Maven repository
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="ivy-") as work:
        ivy = Path(work)
        arguments = [
            "--packages", ",".join(coordinates()),
            "--exclude-packages", ",".join(f"{group}:*" for group in EXCLUDED),
            "--conf", f"spark.jars.ivy={ivy}",
        ]  # fmt: skip
        if settings := os.environ.get("DISPATCH_AUDIT_IVY_SETTINGS"):
            arguments += ["--conf", f"spark.jars.ivySettings={settings}"]
        report = ivy / "report.txt"
        run_spark_submit(arguments, proxy_options(), report)
        if len(found := jars_in(ivy / "jars")) != len(coordinates()):
            # Java has its own list of certificate authorities, which does not contain a company's proxy.
            run_spark_submit(arguments, proxy_options() + system_certificates_options(ivy), report)
            found = jars_in(ivy / "jars")
        if len(found) != len(coordinates()):
            sys.stderr.write(report.read_text(errors="replace")[-4000:])
            raise FileNotFoundError(f"{len(found)} of {len(coordinates())} jars found")
        fresh = ivy / "complete"
        fresh.mkdir()
        for jar in found:
            shutil.move(jar, fresh / jar.name)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)


def run_spark_submit(arguments: list[str], java_options: list[str], report: Path) -> None:
    """Runs ``spark-submit`` with these packages on a program that does nothing; output goes to ``report``."""
    import pyspark

    program = report.with_name("nothing.py")
    program.write_text("")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    with report.open("wb") as out:
        subprocess.run(
            [submit, "--master", "local[1]", *arguments, program],
            env=os.environ | {"SPARK_SUBMIT_OPTS": f"{given} {shlex.join(java_options)}"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )


if __name__ == "__main__":
    destination = Path(sys.argv[1]).absolute()
    try:
        fetch(destination)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(
            f"[setup] Delta's jars could not be fetched: {error}.\n"
            "[setup] Nothing was kept. Check that this machine reaches a Maven repository (proxy: https_proxy; an own\n"
            f"[setup] one: DISPATCH_AUDIT_IVY_SETTINGS), or put these four into {destination}: "
            f"{', '.join(coordinates())}. Then run the same command again."
        )
