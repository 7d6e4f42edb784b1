"""Notices by mail, through the SMTP server of ``CLUSTERWATCH_SMTP_URL``.

In: a notice. Out: a plain text with a small HTML twin; all mails of an incident are one thread. Errors
of 5xx are for good, others are tried again. Nothing of a node can begin a new header: a subject is one
printable line.
"""

from __future__ import annotations

import smtplib
import ssl
from email.utils import parseaddr
from html import escape
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMultiAlternatives
from django.core.mail.backends.smtp import EmailBackend
from django.core.validators import validate_email

from clusterwatch.alerts.notice import Notice
from clusterwatch.alerts.receivers import SENT, BadAddress, Outcome, Target

TIMEOUT_S: Final = 5
ADDRESSES_MAX: Final = 20


class Email:
    """See ``receivers.Kind``."""

    def check(self, address: str) -> str:
        told = [part.strip() for part in address.split(",") if part.strip()]
        if not 0 < len(told) <= ADDRESSES_MAX:
            raise BadAddress(f"one to {ADDRESSES_MAX} mail addresses, separated by commas")
        for one in told:
            try:
                validate_email(parseaddr(one)[1])
            except ValidationError as fault:
                raise BadAddress(f"{one!r} is no mail address") from fault
        return ", ".join(parseaddr(one)[1] for one in told)

    def send(self, target: Target, notice: Notice, key: str) -> Outcome:
        mail = settings.SMTP
        if mail is None:
            return Outcome(False, False, "no mail server: set CLUSTERWATCH_SMTP_URL")
        message = _message(target, notice, key, mail.sender)
        try:
            EmailBackend(
                host=mail.host, port=mail.port, username=mail.user, password=mail.password,
                use_tls=mail.starttls, use_ssl=mail.tls, timeout=TIMEOUT_S,
            ).send_messages([message])  # fmt: skip
        except smtplib.SMTPRecipientsRefused as refused:
            codes = [code for code, _ in refused.recipients.values()]
            return Outcome(False, all(500 <= code < 600 for code in codes), f"recipients refused: {codes}")
        except smtplib.SMTPResponseException as fault:
            said = f"{fault.smtp_code} {_text(fault.smtp_error)}"
            return Outcome(False, 500 <= fault.smtp_code < 600, said)
        except (smtplib.SMTPException, ssl.SSLError, OSError) as fault:
            return Outcome(False, False, f"{type(fault).__name__}: {fault}"[:255])
        return Outcome(True, False, SENT)


def _message(target: Target, notice: Notice, key: str, sender: str) -> EmailMultiAlternatives:
    domain = urlsplit(settings.PUBLIC_URL).hostname or "clusterwatch"
    thread = f"<{notice.thread}@{domain}>"
    message = EmailMultiAlternatives(
        subject=notice.subject,
        body="\n".join([*notice.lines, "", notice.url]),
        from_email=sender,
        to=[one.strip() for one in target.address.split(",")],
        headers={
            "Message-ID": f"<{key}@{domain}>", "In-Reply-To": thread, "References": thread,
            "Auto-Submitted": "auto-generated",
        },
    )  # fmt: skip
    lines = "".join(f"<p>{escape(line)}</p>" for line in notice.lines)
    message.attach_alternative(f'{lines}<p><a href="{escape(notice.url)}">Open it</a></p>', "text/html")
    return message


def _text(raw: object) -> str:
    return (raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw))[:200]
