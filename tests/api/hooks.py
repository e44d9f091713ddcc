"""What a description cannot say of a call: places that only the API itself gives out, and that no column is sorted by twice."""

import schemathesis


def once(columns):
    """The first of each, whichever way it is sorted."""
    seen = {}
    for column in columns:
        seen.setdefault(str(column).split(":")[0], column)
    return list(seen.values())


@schemathesis.hook
def map_query(ctx, query):
    if not isinstance(query, dict):
        return query
    # As a page before gave it; the id of a channel that is listed.
    query.pop("cursor", None)
    query.pop("channel", None)
    columns = query.get("sort")
    if isinstance(columns, list):
        query["sort"] = once(columns)
    elif isinstance(columns, str):
        query["sort"] = ",".join(once(columns.split(",")))
    return query
