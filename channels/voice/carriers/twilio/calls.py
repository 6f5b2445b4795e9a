"""Steering a live call on Twilio by its REST interface."""

from __future__ import annotations

import base64
from urllib.parse import quote, urlencode

from channels.voice.carriers.rest import check, post
from channels.voice.carriers.targets import parse_target
from channels.voice.carriers.twilio.twiml import dial
from flow_engine.ports.outbound import OutboundSender

DEFAULT_URL = "https://api.twilio.com"


class TwilioCalls:
    def __init__(
        self, sender: OutboundSender, account_sid: str, auth_token: str, *, base_url: str = DEFAULT_URL
    ) -> None:
        self._sender = sender
        self._calls = f"{base_url.rstrip('/')}/2010-04-01/Accounts/{quote(account_sid, safe='')}/Calls"
        credentials = base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()
        self._headers = {
            "Authorization": f"Basic {credentials}",
            "Content-Type": "application/x-www-form-urlencoded",
        }

    async def redirect(self, call_sid: str, target: str) -> None:
        """Give the call to a phone number or SIP address. Twilio ends the stream then.

        Raises LineControlFailed, and CorrectTheInput `transfer_target_invalid` before anything is sent.
        """
        document = dial(parse_target(target))
        step = "the transfer of a call on Twilio"
        url = f"{self._calls}/{quote(call_sid, safe='')}.json"
        content = urlencode({"Twiml": document}).encode()
        check(step, await post(self._sender, step, url, self._headers, content))
