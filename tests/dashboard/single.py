"""Drives the dashboard of one node: single.py views|steps URL TOKEN MQTT_PORT PICTURES.

The node has the durable sessions reader-0 to reader-4 (offline, reader-N with N * 10 messages), and a client that calls itself
`<img src=x onerror=window.hacked=1>`.
"""

import sys

import paho.mqtt.client as mqtt
from browser import NARROW, WIDE, Browser, column, expect, number, run, sign_in, visit, wait
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

WHAT, URL, TOKEN, PORT, PICTURES = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
HOSTILE = "<img src=x onerror=window.hacked=1>"
VIEWS = ["Overview", "Sessions", "Nodes", "Channels", "Members", "Events"]
kept = []


def connect(client_id, will=None):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 300
    client.gone = []
    client.on_disconnect = lambda _client, _data, _flags, reason, _properties: client.gone.append(str(reason))
    if will:
        client.will_set(will, b"gone", 1)
    client.connect("127.0.0.1", PORT, clean_start=False, properties=properties)
    client.loop_start()
    kept.append(client)
    return client


def entry():
    """A wrong token is said to be wrong; the right one opens, and is in no URL and nothing that outlives the tab."""
    page = browser.open(URL)
    browser.axe("entry")
    page.get_by_label("Token").fill("this-is-not-the-token")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")
    browser.picture("entry-wrong-token")
    browser.axe("entry, wrong token")
    sign_in(page, TOKEN)
    assert TOKEN not in page.url
    assert page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    sign_in(page, TOKEN)


def every_view():
    """axe-core on every view, dark and light, wide and narrow; nothing is wider than the screen; pictures of all of it."""
    for scheme, size, name in (("light", WIDE, "wide"), ("dark", WIDE, "wide"), ("light", NARROW, "narrow"), ("dark", NARROW, "narrow")):
        page = browser.open(URL, scheme, size)
        sign_in(page, TOKEN)
        expect(page.locator(".tile b").first).not_to_have_text("–")
        for view in VIEWS:
            visit(page, view)
            if view not in ("Overview", "Events", "Nodes"):
                expect(page.locator("tbody tr").first).to_be_visible()
            if view == "Overview":
                expect(page.get_by_text("Healthy")).to_be_visible()
            browser.axe(f"{view}, {scheme}, {name}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the screen"
            browser.picture(f"{view.lower()}-{scheme}-{name}")
        page.goto(f"{URL}/#/session?namespace=main&client_id=reader-4")
        expect(page.get_by_role("heading", name="reader-4")).to_be_visible()
        expect(page.get_by_text("40 messages")).to_be_visible()
        browser.axe(f"session, {scheme}, {name}")
        browser.picture(f"session-{scheme}-{name}")
        page.get_by_role("button", name="End session…").click()
        page.get_by_role("dialog").get_by_role("button", name="End session").hover()
        browser.axe(f"End, {scheme}, {name}")
        browser.picture(f"end-{scheme}-{name}")
        page.context.close()


def theme():
    """The toggle turns what is seen, and stays over a reload."""
    page = browser.open(URL)
    sign_in(page, TOKEN)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(ground) == light


def filters():
    """Prefix and state select; the filter is in the address, so that it can be kept."""
    page = browser.page
    visit(page, "Sessions")
    page.get_by_label("ClientID").fill("reader-")
    wait(page, "() => document.querySelectorAll('tbody tr').length === 5")
    assert "prefix=reader-" in page.url
    page.get_by_label("State").select_option("active")
    expect(page.get_by_text("No session fits.")).to_be_visible()
    page.get_by_label("State").select_option("offline")
    wait(page, "() => document.querySelectorAll('tbody tr').length === 5")


def hostile_names():
    """What a client calls itself is text everywhere, and runs nowhere."""
    page = browser.page
    for view in ("Sessions", "Channels", "Members"):
        visit(page, view)
        expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()
    page.goto(f"{URL}/#/sessions")
    page.get_by_text(HOSTILE, exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.get_by_text("x<script>/#")).to_be_visible()
    connect(HOSTILE)
    visit(page, "Events")
    expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def events():
    """An event comes while it is watched, and filters hold it back."""
    page = browser.page
    visit(page, "Events")
    expect(page.get_by_text("Following")).to_be_visible()
    connect("seen-live")
    row = page.locator('li[data-kind="connect"]', has_text="seen-live")
    expect(row).to_be_visible()
    browser.picture("events-live")
    page.get_by_role("button", name="connect", exact=True).click()
    expect(row).to_be_hidden()
    page.get_by_role("button", name="connect", exact=True).click()
    page.get_by_label("Only events with").fill("nobody-has-this")
    expect(row).to_be_hidden()
    page.get_by_label("Only events with").fill("seen-")
    expect(row).to_be_visible()
    # Paused, nothing comes; going on, it is there.
    page.get_by_role("button", name="Pause").click()
    connect("seen-later")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator('li[data-kind="connect"]', has_text="seen-later")).to_be_visible()


def sorting():
    """By one column, by two, by the keyboard; a fifth column is not offered."""
    page = browser.page
    visit(page, "Channels")
    page.get_by_label("Name").fill("reader-")
    wait(page, "() => document.querySelectorAll('tbody tr').length === 5")
    messages = lambda: [number(text) for text in column(page, "Messages")]
    assert messages() == [40, 30, 20, 10, 0], messages()
    page.get_by_role("columnheader", name="Messages").get_by_role("button").click()
    wait(page, "() => document.querySelector('tbody td[data-label=Messages]').textContent === '0'")
    assert messages() == [0, 10, 20, 30, 40]
    assert page.locator("th[aria-sort=ascending]").count() == 1
    # State first, which is the same for all, then the name down.
    page.get_by_role("columnheader", name="State").get_by_role("button").click()
    page.get_by_role("columnheader", name="Name").get_by_role("button").click(modifiers=["Shift"])
    wait(page, "() => document.querySelector('tbody td').textContent === 'reader-4'")
    assert "sort=state%3Adesc%2Cname%3Adesc" in page.url, page.url
    more = page.get_by_label("Add a column to sort by")
    more.select_option("bytes")
    more.select_option("consumers")
    expect(more).to_have_count(0)
    browser.picture("channels-sorted")
    visit(page, "Channels")


def end_fenced():
    """409: another connection took the session over while the dialog was open. Nothing of it is touched, and the dialog says so."""
    page = browser.page
    first = connect("contested")
    page.goto(f"{URL}/#/session?namespace=main&client_id=contested")
    page.get_by_role("button", name="End session…").click()
    second = connect("contested")
    wait(page, "() => true")
    for _ in range(200):
        if first.gone and second.is_connected():
            break
        page.wait_for_timeout(50)
    page.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(page.get_by_role("dialog")).to_contain_text("409: another connection has the session now")
    browser.picture("end-fenced")
    browser.axe("End, fenced")
    page.get_by_role("button", name="Show the new owner").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert second.is_connected() and not second.gone


def end_by_keyboard():
    """From the list to the End of a session without a mouse; Esc closes the dialog and gives the focus back."""
    page = browser.page
    victim = connect("victim", will="will/victim")
    page.goto(f"{URL}/#/sessions?prefix=vic")
    link = page.get_by_role("link", name="victim")
    expect(link).to_be_visible()
    page.get_by_label("Namespace").focus()
    for _ in range(4):
        if link.evaluate("node => node === document.activeElement"):
            break
        page.keyboard.press("Tab")
    assert link.evaluate("node => node === document.activeElement && node.matches(':focus-visible')")
    page.keyboard.press("Enter")
    opener = page.get_by_role("button", name="End session…")
    expect(opener).to_be_enabled()
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert opener.evaluate("node => node === document.activeElement")
    page.keyboard.press("Enter")
    # Focus begins at the reason: explicit is the second one. Then the Will: suppress.
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    for _ in range(4):
        page.keyboard.press("Tab")
    assert dialog.get_by_role("button", name="End session").evaluate("node => node === document.activeElement")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Final revision")
    browser.picture("end-done")
    browser.axe("End, done")
    page.keyboard.press("Escape")
    expect(page.get_by_text("ended: explicit")).to_be_visible()
    expect(opener).to_be_disabled()
    for _ in range(200):
        if victim.gone:
            break
        page.wait_for_timeout(50)
    assert victim.gone, "its socket is closed"


def stale():
    """A node that does not answer: the page says since when, and goes on by itself when it is back."""
    page = browser.page
    visit(page, "Overview")
    page.context.set_offline(True)
    expect(page.get_by_text("Stale since")).to_be_visible()
    browser.picture("stale")
    page.context.set_offline(False)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    browser.check()


with Browser(PICTURES) as browser:
    browser.page = None
    connect("talker").publish("quiet", b"x", qos=1)
    run([every_view, theme] if WHAT == "views" else [entry, filters, hostile_names, events, sorting, end_fenced, end_by_keyboard, stale])
    browser.check()
for client in kept:
    client.loop_stop()
print("all steps passed")
