//! Listeners: TCP, TLS, WebSocket, PROXY protocol v2; each accepted socket goes to the worker with the fewest connections.
