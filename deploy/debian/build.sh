#!/bin/sh
# Makes target/debian/exactmq_VERSION_ARCH.deb of target/release/exactmq. `make deb` builds that first.
set -eu
cd "$(dirname "$0")/../.."
binary=${1:-target/release/exactmq}
[ -x "$binary" ] || { echo "build.sh: $binary is not there: make deb builds it" >&2; exit 1; }
version=$("$binary" version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
out=target/debian
root=$out/root
rm -rf "$root"
mkdir -p "$root/DEBIAN" "$root/etc/exactmq" "$root/usr/bin" "$root/usr/share/doc/exactmq" "$root/lib/systemd/system"
install -m 755 "$binary" "$root/usr/bin/exactmq"
strip --strip-debug "$root/usr/bin/exactmq" 2>/dev/null || true
install -m 640 deploy/exactmq.toml "$root/etc/exactmq/exactmq.toml"
install -m 644 deploy/systemd/exactmq.service "$root/lib/systemd/system/exactmq.service"
install -m 644 README.md CHANGELOG.md docs/*.md broker/MONITOR.md broker/exactmq.example.toml "$root/usr/share/doc/exactmq/"
install -m 644 LICENSE "$root/usr/share/doc/exactmq/copyright"
if [ -d deploy/grafana ]; then cp -r deploy/grafana deploy/prometheus "$root/usr/share/doc/exactmq/"; fi
for script in postinst prerm postrm; do install -m 755 "deploy/debian/$script" "$root/DEBIAN/$script"; done
echo /etc/exactmq/exactmq.toml > "$root/DEBIAN/conffiles"
# What the binary is linked to; a Debian of the build's age or newer has it.
libc=$(dpkg-query -W -f '${Version}' libc6 | cut -d- -f1)
cat > "$root/DEBIAN/control" <<EOF
Package: exactmq
Version: $version
Architecture: $arch
Maintainer: The ExactMQ authors <exactmq@localhost>
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: libc6 (>= $libc), libgcc-s1, adduser
Section: net
Priority: optional
Description: MQTT 3.1.1 and 5 broker with exact-owner sessions
 A takeover, or an operator's End, is committed only after the old owner of a
 session proved that it stopped. Sessions, queues, retained messages and Wills
 are on an embedded, replicated, fsynced store.
EOF
dpkg-deb --root-owner-group --build "$root" "$out/exactmq_${version}_${arch}.deb"
