"""What a description cannot say of a call: places that only the API itself gives out are left out."""

import schemathesis


@schemathesis.hook
def map_query(ctx, query):
    if isinstance(query, dict):
        # As a page before gave it; the id of a channel that is listed.
        query.pop("cursor", None)
        query.pop("channel", None)
        columns = query.get("sort")
        if isinstance(columns, list):
            seen = {}
            for column in columns:
                seen.setdefault(str(column).split(":")[0], column)
            query["sort"] = list(seen.values())
    return query


@schemathesis.hook
def map_body(ctx, body):
    # It must be of the session that the path names.
    if isinstance(body, dict) and "owner" in body and "reason" in body:
        body.pop("owner")
    return body
