"""Text without secrets: none of these may be left, and what people and programs write must be."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable

import pytest

from mindgspo.metrics.redaction import redacted, redacted_words, secret_values

RANDOM = random.Random(1)


def drawn(letters: str, number: int) -> str:
    return "".join(RANDOM.choices(letters, k=number))


LETTERS = string.ascii_letters + string.digits
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\nygWyF8PbnGy0AHB7MhgHcTz6sE2I2yPB\n"
END = "-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("key", [
    f"sk-proj-{'abcd' * 8}1", "sk-ant-api03-AbCdEf123456-xyz", f"hf_{'aBcD' * 8}", f"ghp_{'a1B2' * 9}",
    "github_pat_11ABCDEFG0abcdefghij_klmnopqrstuvwxyz", "glpat-ABCdef123456ghiJKL78", "AKIAIOSFODNN7EXAMPLE",
    f"AIza{'SyD-' * 9}", "xoxb-123456789012-abcdefghijkl", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF-ghi",
    "LTAI5tAbCdEfGhIjKlMnOpQr", f"npm_{'abcd' * 9}0", f"lsv2_pt_{'0123456789abcdef' * 2}_abcdef1234",
])  # fmt: skip
def test_known_forms_of_keys(key: str) -> None:
    for text in (f"using {key} now", f"x={key}", f"'{key}',", f"[{key}]", f"https://host/{key}/a"):
        assert key[8:] not in redacted(text, {}), redacted(text, {})


@pytest.mark.parametrize("text", [
    "api_key=geheim", "--api-key=geheim", '"token": "geheim"', "{'apiKey': 'ge heim'}", "password: geheim",
    "Authorization: Bearer geheim.1", "curl -H 'X-Api-Key: geheim'", "Cookie: a=1; sid=geheim", "db://user:geheim@x",
    "http://u:geheim@ab@h:80/x", "http://h/a?b=1&token=geheim&x=1", "passphrase = 'geheim'", "HCCL_PASSPHRASE=geheim",
    "LANGSMITH_API=geheim", "ASCEND_PASS=geheim", "export MYSQL_PWD=geheim", "AccessKeyId=geheim",
    "aws_secret_access_key = geheim", "--password geheim", "accessToken: geheim", "client_secret=geheim",
    "curl -u me:geheim http://a", "machine a login b password geheim",
    "('password', 'geheim')", '{\\"secret\\": \\"geheim\\"}', "token:\n  geheim",
])  # fmt: skip
def test_what_stands_behind_a_name(text: str) -> None:
    assert "heim" not in redacted(text, {}), redacted(text, {})


@pytest.mark.parametrize("key", [PEM + END, PEM, PEM.partition("\n")[2] + END, (PEM + END).replace("\n", "\\n")])
def test_a_private_key_whole_or_cut_off_by_the_end_of_a_log(key: str) -> None:
    text = redacted(f"{key}\nlast line" if key.endswith(END) else key, {})
    assert "MIIEowIBAAK" not in text and "ygWyF8PbnGy0" not in text
    assert "last line" in text or not key.endswith(END)


@pytest.mark.parametrize("draw", [
    lambda: base64.b64encode(RANDOM.randbytes(24)).decode(),
    lambda: base64.urlsafe_b64encode(RANDOM.randbytes(24)).decode(),
    lambda: base64.b32encode(RANDOM.randbytes(20)).decode(),
    lambda: RANDOM.randbytes(16).hex(),
    lambda: "-".join(RANDOM.randbytes(count).hex() for count in (4, 2, 2, 2, 6)),
    lambda: drawn(LETTERS, 24),
    lambda: drawn(string.ascii_lowercase + string.digits, 32),
    lambda: drawn(string.ascii_letters, 32),
])  # fmt: skip
def test_what_is_drawn_at_random(draw: Callable[[], str]) -> None:
    missed = [word for word in (draw() for _ in range(500)) if "***" not in redacted(f"a {word} b", {})]
    assert len(missed) <= 10, missed  # two in a hundred


@pytest.mark.parametrize("text", [
    "trainer.max_tokens_per_micro_batch=64", "num_tokens: 1234", "pad_token_id=151643", "tokens/s 12345.6",
    "tokenizer: /a/b", "KeyError: 'model.layers'", "rollout.servers.api=vllm", "bypass: 3", "author: Kim",
    "/usr/local/lib/python3.11/site-packages/mindspore/ops/auto_generate/gen_ops_def.py",
    "_ZN9mindspore6kernel22ascend_native_kernels3RunEv", "HcclCommInitRootInfoConfigInner",
    "MatMulV3_ND_bf16_FRACTAL_NZ_310p", "optimizer_state_00000010.safetensors",
    "[ERROR] HCCL(12345,python):2026-11-26-11:45:02.123.456 [hccl_socket_manager.cc:786][7012][Wait] timeout 120 s",
    "aclnnFlashAttentionScoreGetWorkspaceSize", "step 5: reward 0.5, keys: 5", "secret=None", "http://10.0.0.7:8000/v1",
])  # fmt: skip
def test_what_people_and_programs_write_stays(text: str) -> None:
    assert redacted(text, {}) == text
    assert redacted(redacted(f"a {text} token=x", {}), {}) == f"a {text} token=***"


def test_values_of_variables_wherever_they_occur() -> None:
    environment = {
        "HCCL_PASSPHRASE": "correct horse staple", "WANDB_API_KEY": "plainword", "MY_PASS": "ab/c+d e",
        "SHORT_KEY": "xy", "MODEL_TOKEN": "true", "TLS_CERT": "line one is\nline two is", "http_proxy": "http://me:pw12@proxy:80",
        "OTHER": "visible", "SSH_KEY": "/etc", "DB_AUTH": "user99:hidden99", "PWD": "/work",
    }  # fmt: skip
    text = (
        "correct horse staple; xplainwordx; ab/c+d e ab%2Fc%2Bd%20e; line two is; pw12 me:pw12; hidden99; "
        f"{base64.b64encode(b'plainword').decode()}; true visible /etc/x /work xy spw12s"
    )
    assert redacted(text, environment) == (
        "***; x***x; *** ***; ***; *** ***; ***; ***; true visible /etc/x /work xy spw12s"
    )
    assert "true" not in secret_values(environment)


def test_an_option_and_the_secret_behind_it() -> None:
    words = "run --api-key geheim --wandb.token geheim --max-tokens 64 --set a.password=geheim"
    assert list(redacted_words(words.split(), {})) == words.replace("geheim", "***").split()


@pytest.mark.parametrize(
    "part", ["a-", "key-", "x", "://", "-----BEGIN PRIVATE KEY ", 'pass="', "--a", "sk-", "token "]
)
def test_a_hostile_log_is_read_in_one_pass(part: str) -> None:
    redacted(part * (100_000 // len(part)), {"A_TOKEN": "abcdefgh"})  # hangs where it goes back and forth
