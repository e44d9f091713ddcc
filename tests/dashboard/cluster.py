"""Drives the dashboard of a node in a cluster whose node 3 is dead: cluster.py URL TOKEN PICTURES.

The session `stranded` is still with node 3.
"""

import sys

from browser import Browser, expect, run, sign_in, visit

URL, TOKEN, PICTURES = sys.argv[1:4]


def overview():
    """What is wrong is on the first page."""
    page = browser.open(URL)
    sign_in(page, TOKEN)
    expect(page.get_by_text("Node 3 cannot be reached", exact=True).first).to_be_visible()
    expect(page.get_by_text("2 of 3")).to_be_visible()
    browser.axe("overview, a node is away")
    browser.picture("cluster-overview")


def end_unproved():
    """503: nobody can prove that the connection stopped; the dialog says what to do and leads there."""
    page = browser.page
    page.goto(f"{URL}/#/session?namespace=main&client_id=stranded")
    page.get_by_role("button", name="End session…").click()
    page.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(page.get_by_role("dialog")).to_contain_text("503: not proved that its connection stopped", timeout=30_000)
    browser.picture("cluster-end-unproved")
    browser.axe("End, unproved")
    page.get_by_role("link", name="retire its boot on node 3").click()


def nodes():
    """Boots, leases and who is reachable; the boot of the dead node is retired with an attestation, and the result shown."""
    page = browser.page
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", name="Nodes", level=1)).to_be_visible()
    card = page.locator('section[data-node="3"]')
    expect(card.get_by_text("not reachable")).to_be_visible()
    expect(page.get_by_text("reachable", exact=True)).to_have_count(2)
    browser.axe("nodes, one is away")
    browser.picture("cluster-nodes")
    card.get_by_role("button", name="Retire boot").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Retire").click()
    assert dialog.locator("textarea:invalid").count() == 1, "an attestation is asked for"
    dialog.get_by_label("How you know").fill("killed by this test")
    browser.axe("retire")
    dialog.get_by_role("button", name="Retire").click()
    expect(dialog).to_contain_text("Proof: attested", timeout=60_000)
    browser.picture("cluster-retired")
    browser.axe("retired")
    dialog.get_by_role("button", name="Close").click()
    expect(card.get_by_text("killed by this test")).to_be_visible()


def events():
    """The feed told that the node went, and that its boot was retired."""
    page = browser.page
    visit(page, "Events")
    expect(page.locator('li[data-kind="node_down"]', has_text="Node 3").first).to_be_visible()
    expect(page.locator('li[data-kind="retired"]', has_text="node 3").first).to_be_visible()
    browser.picture("cluster-events")


with Browser(PICTURES) as browser:
    browser.page = None
    run([overview, end_unproved, nodes, events])
    browser.check()
print("all steps passed")
