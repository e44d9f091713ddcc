"""Round trips with Eclipse Paho: QoS 0, 1, 2, retained, Will and a persistent session.

usage: paho_roundtrip.py VERSION TRANSPORT HOST PORT [CA_FILE]
VERSION is 311 or 5, TRANSPORT tcp, tls, ws or wss. Exits 0 when every step held.
"""

import queue
import sys
import uuid

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

VERSION, TRANSPORT, HOST, PORT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
CA = sys.argv[5] if len(sys.argv) > 5 else None
PROTOCOL = mqtt.MQTTv5 if VERSION == "5" else mqtt.MQTTv311
PATIENCE = 10


class Peer:
    """One Paho client with a queue of what happened to it."""

    def __init__(self, client_id, durable=False, will=None):
        options = {} if VERSION == "5" else {"clean_session": not durable}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=PROTOCOL,
            transport="websockets" if TRANSPORT in ("ws", "wss") else "tcp",
            **options,
        )
        if TRANSPORT in ("tls", "wss"):
            self.client.tls_set(ca_certs=CA)
        if TRANSPORT in ("ws", "wss"):
            self.client.ws_set_options(path="/mqtt")
        if will:
            self.client.will_set(*will)
        self.connected, self.messages, self.done = queue.Queue(), queue.Queue(), queue.Queue()
        self.client.on_connect = lambda _c, _u, flags, reason, _p: self.connected.put((reason, flags.session_present))
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _mid, reasons, _p: self.done.put(reasons)
        self.client.on_publish = lambda _c, _u, _mid, reason, _p: self.done.put(reason)
        extra = {}
        if VERSION == "5":
            extra["clean_start"] = not durable
            if durable:
                properties = Properties(PacketTypes.CONNECT)
                properties.SessionExpiryInterval = 300
                extra["properties"] = properties
        self.client.connect(HOST, PORT, keepalive=30, **extra)
        self.client.loop_start()
        reason, self.present = self.connected.get(timeout=PATIENCE)
        assert not reason.is_failure, reason

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        reasons = self.done.get(timeout=PATIENCE)
        assert not reasons[0].is_failure, reasons

    def publish(self, topic, payload, qos, retain=False):
        self.client.publish(topic, payload, qos, retain)
        self.done.get(timeout=PATIENCE)

    def expect(self, topic, payload):
        message = self.messages.get(timeout=PATIENCE)
        assert (message.topic, message.payload) == (topic, payload), (message.topic, message.payload)
        return message

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self):
        """Breaks the connection without DISCONNECT."""
        self.client.loop_stop()
        self.client.socket().close()
        self.client._sock = None


def main():
    root = f"paho/{uuid.uuid4().hex}"
    subscriber, publisher = Peer(f"s{uuid.uuid4().hex[:8]}"), Peer(f"p{uuid.uuid4().hex[:8]}")
    for qos in (0, 1, 2):
        subscriber.subscribe(f"{root}/q{qos}/#", qos)
        for number in range(20):
            publisher.publish(f"{root}/q{qos}/x", f"{number}".encode(), qos)
        for number in range(20):
            assert subscriber.expect(f"{root}/q{qos}/x", f"{number}".encode()).qos == qos
    big = b"z" * 200_000
    publisher.publish(f"{root}/q2/big", big, 2)
    subscriber.expect(f"{root}/q2/big", big)

    publisher.publish(f"{root}/kept", b"value", 1, retain=True)
    late = Peer(f"l{uuid.uuid4().hex[:8]}")
    late.subscribe(f"{root}/kept", 1)
    assert late.expect(f"{root}/kept", b"value").retain
    late.close()

    subscriber.subscribe(f"{root}/will", 1)
    Peer(f"w{uuid.uuid4().hex[:8]}", will=(f"{root}/will", b"gone", 1, False)).drop()
    subscriber.expect(f"{root}/will", b"gone")

    name = f"d{uuid.uuid4().hex[:8]}"
    durable = Peer(name, durable=True)
    assert not durable.present
    durable.subscribe(f"{root}/durable", 2)
    durable.close()
    for number in range(10):
        publisher.publish(f"{root}/durable", f"{number}".encode(), 2)
    durable = Peer(name, durable=True)
    assert durable.present
    for number in range(10):
        durable.expect(f"{root}/durable", f"{number}".encode())
    for peer in (durable, publisher, subscriber):
        peer.close()


main()
print(f"ok {VERSION} {TRANSPORT}")
