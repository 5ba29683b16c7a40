"""The client: one set of rules; asyncio transports for one request and for many, and a blocking transport."""
