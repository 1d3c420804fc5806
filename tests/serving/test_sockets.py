"""The server's sockets."""

import asyncio
import socket

from specresearch.serving.server import bind


def test_connections_send_small_packets_at_once() -> None:
    """Otherwise the first token of a stream waits for the acknowledgement of its header lines."""

    async def option() -> int:
        found = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            value = await found
            writer.close()
            return value

    assert asyncio.run(option())
