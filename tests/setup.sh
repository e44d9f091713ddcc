#!/usr/bin/env bash
# Installs what the suites need on a Debian machine that has Rust: Debian packages, a Python environment, cargo-nextest.
set -euo pipefail
venv=$1

missing=()
for pair in mosquitto:mosquitto mosquitto_pub:mosquitto-clients cc:gcc openssl:openssl ip:iproute2 iptables:iptables mkfs.ext4:e2fsprogs faketime:faketime etcd:etcd-server protoc:protobuf-compiler chromium:chromium; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# What the build of etcd-client compiles; only the feature `etcd` needs it.
[[ -e /usr/include/google/protobuf/descriptor.proto ]] || missing+=(libprotobuf-dev)
/usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
as_root=(); [[ $(id -u) == 0 ]] || as_root=(sudo)
if ((${#missing[@]})); then
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  # The packaged mosquitto service would hold port 1883: only its program is wanted.
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [[ ! -x $venv/bin/python ]] || ! "$venv/bin/python" -c 'import paho.mqtt, websockets, playwright, axe_playwright_python, schemathesis' 2>/dev/null; then
  /usr/bin/python3 -m venv "$venv"
  # Playwright drives Debian's Chromium: it downloads no browser of its own. The other carries axe-core.
  "$venv/bin/pip" install --quiet --disable-pip-version-check paho-mqtt==2.1.0 websockets==13.1 \
    playwright==1.65.2 axe-playwright-python==0.1.8 schemathesis==4.32.5
fi

# Of Prometheus only promtool, which checks the rules of deploy/prometheus: the package would start a server.
if [[ ! -x $venv/bin/promtool ]]; then
  package=$(mktemp -d)
  ( cd "$package"
    fetch=(apt-get -o APT::Sandbox::User=root download -qq prometheus)
    "${fetch[@]}" || { "${as_root[@]}" apt-get update -qq && "${fetch[@]}"; } ) >/dev/null
  dpkg-deb --fsys-tarfile "$package"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$package/promtool"
  install -m 755 "$package/promtool" "$venv/bin/promtool"
  rm -r "$package"
fi

cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest
