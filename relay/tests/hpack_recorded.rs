//! Header blocks that other people's encoders wrote: the calls of a kubelet and what a runtime
//! answers, each direction by one encoder and read by one decoder.
//!
//! Recorded once, from Go's `golang.org/x/net/http2/hpack` v0.60.0 (`Encoder.WriteField`), which
//! the kubelet and containerd use, and from nghttp2 1.52.0 (`nghttp2_hd_deflate_hd`). Both began
//! with a table of 4,096 bytes, were given the sizes and the fields below, `authorization` as
//! sensitive, and could read each other. They differ: Go indexes all that fits, nghttp2 no `:path`
//! and nothing that takes more than three quarters of the table.
//!
//! The blocks are also in `fuzz/seeds/hpack`, so none may be longer than 255 bytes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_relay::hpack::{Decoder, write_literal, write_resize};
use support::hpack::{self as plain, Field, bytes, field, read};

type Pair = (&'static str, &'static str);

/// The sizes that an encoder was told in front of a block, and the fields of the block.
type Said = (&'static [usize], &'static [Pair]);

#[derive(Debug)]
struct Recorded {
    /// How many entries the encoder's dynamic table had behind each block.
    entries: &'static [usize],
    blocks: &'static [&'static str],
}

const POST: Pair = (":method", "POST");
const HTTP: Pair = (":scheme", "http");
const CREATE: Pair = (":path", "/runtime.v1.RuntimeService/CreateContainer");
const EVENTS: Pair = (":path", "/runtime.v1.RuntimeService/GetContainerEvents");
const AUTHORITY: Pair = (":authority", "localhost");
const GRPC: Pair = ("content-type", "application/grpc");
const AGENT: Pair = ("user-agent", "grpc-go/1.72.2");
const TE: Pair = ("te", "trailers");
const IN_2_S: Pair = ("grpc-timeout", "1999987u");
const IN_2_MIN: Pair = ("grpc-timeout", "119998m");
const SECRET: Pair = ("authorization", "Bearer kubelet-17");
const TRACE_1: Pair = (
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
);
const TRACE_2: Pair = (
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01",
);
/// Longer than 127 bytes in the Huffman code too.
const TAGS: Pair = (
    "grpc-tags-bin",
    "AAADcG9kJDNmMWM5YTUyLTc3YzAtNGM1NS05YzBhLTJmNmQwYmUxYTlkNAAJbmFtZXNwYWNlC2t1YmUtc3lzdGVtAAl\
     jb250YWluZXIOa3ViZS1wcm94eS3igqwABG5vZGUVd29ya2VyLTE3LmV4YW1wbGUub3Jn",
);

const REQUESTS: [Said; 5] = [
    (
        &[],
        &[
            POST, HTTP, CREATE, AUTHORITY, GRPC, AGENT, TE, IN_2_S, SECRET, TRACE_1,
        ],
    ),
    (
        &[],
        &[
            POST, HTTP, CREATE, AUTHORITY, GRPC, AGENT, TE, IN_2_MIN, SECRET, TRACE_2, TAGS,
        ],
    ),
    (
        &[0, 4_096],
        &[
            POST, HTTP, CREATE, AUTHORITY, GRPC, AGENT, TE, IN_2_MIN, SECRET, TRACE_2,
        ],
    ),
    (&[256], &[POST, HTTP, EVENTS, AUTHORITY, GRPC, AGENT, TE]),
    (&[], &[POST, HTTP, EVENTS, AUTHORITY, GRPC, AGENT, TE]),
];

const OK: Pair = (":status", "200");
const NO_ERROR: Pair = ("grpc-status", "0");
const NO_MESSAGE: Pair = ("grpc-message", "");
const EXISTS: Pair = ("grpc-status", "6");
const MESSAGE: Pair = (
    "grpc-message",
    "name \"na%C3%AFve\" is taken:%0A100%25 used",
);
/// 209 bytes of a table: more than three quarters of 256.
const DETAILS: Pair = (
    "grpc-status-details-bin",
    "CAYSIW5hbWUgIm5hw692ZSIgaXMgdGFrZW46CjEwMCUgdXNlZBpMCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5\
     ycGMuRXJyb3JJbmZvEiAKCk5BTUVfVEFLRU4SEnJ1bnRpbWUudjEuZXhhbXBsZQ",
);

const REPLIES: [Said; 7] = [
    (&[], &[OK, GRPC]),
    (&[], &[NO_ERROR, NO_MESSAGE]),
    (&[0], &[OK, GRPC]),
    (&[256], &[NO_ERROR, NO_MESSAGE]),
    (&[], &[NO_ERROR, NO_MESSAGE]),
    (&[], &[EXISTS, MESSAGE, DETAILS]),
    (&[4_096], &[OK, GRPC, EXISTS, MESSAGE, DETAILS]),
];

const GO_REQUESTS: Recorded = Recorded {
    entries: &[7, 10, 7, 4, 4],
    blocks: &[
        "8386 459e 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b17 ac28 d25b c7a9 2335 45b3 4186 \
         a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 c540 0274 6586 \
         4d83 3505 b11f 4089 9aca c8b2 4d49 4f6a 7f86 0bef befb cedb 1f08 8dba 51d8 5b14 eb6c 65a0 \
         a958 2eff 4088 4d83 216b 1d85 a93f a700 166a 395f 14ac b6eb b1b2 d483 706c 90af 89f9 0050 \
         15a7 5971 6002 5038 e8c6 08c6 f805 1bab 003f",
        "8386 c4c3 c2c1 c07f 0085 085f 7df7 a91f 088d ba51 d85b 14eb 6c65 a0a9 582e ff7f 00a7 0016 \
         6a39 5f14 acb6 ebb1 b2d4 8370 6c90 af89 f900 5015 a759 7168 dd1c 8e46 e85c 7c40 6596 42b0 \
         0340 8a9a cac8 b247 3216 8cd5 7fff 0286 186f 9313 fd72 dfd3 4e8e 5a1b e7bf 87ac fbc8 cf3f \
         70a7 4e2d 01d3 b80d f3f7 767c fbf2 d3a6 9d9e 39d3 c3cf 3df4 75d3 0c39 63a7 0a7f 7f34 f8e7 \
         cb4d 1784 90f3 a782 48cd 1ee4 c5c5 30c3 4748 c4d8 39f2 a2df dfcc 9a86 cf13 7eee 0f82 52fb \
         45dc c9a6 ede2 1bb8 9bef fb8b 8719 04ff a18b 8fac fbf0 339e 9e2d 73e4 1f11 e2e1 6c6c e5ab",
        "203f e11f 8386 459e 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b17 ac28 d25b c7a9 2335 \
         45b3 4186 a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 c540 \
         0274 6586 4d83 3505 b11f 4089 9aca c8b2 4d49 4f6a 7f85 085f 7df7 a91f 088d ba51 d85b 14eb \
         6c65 a0a9 582e ff40 884d 8321 6b1d 85a9 3fa7 0016 6a39 5f14 acb6 ebb1 b2d4 8370 6c90 af89 \
         f900 5015 a759 7168 dd1c 8e46 e85c 7c40 6596 42b0 03",
        "3fe1 0183 8645 a162 cb6a 49a9 2afd c2be db6a 49a9 2ee2 d9dc c42b 188a 9bc7 a923 3545 b307 \
         72d4 947f 4186 a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 \
         c540 0274 6586 4d83 3505 b11f",
        "8386 45a1 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b18 8a9b c7a9 2335 45b3 0772 d494 \
         7f41 86a0 e41d 139d 095f 8b1d 75d0 620d 263d 4c4d 6564 7a8a 9aca c8b4 c760 2bba 25c5 4002 \
         7465 864d 8335 05b1 1f",
    ],
};

const GO_REPLIES: Recorded = Recorded {
    entries: &[1, 3, 0, 2, 2, 1, 4],
    blocks: &[
        "885f 8b1d 75d0 620d 263d 4c4d 6564",
        "4088 9aca c8b2 1234 da8f 0130 4089 9aca c8b5 2542 0731 7f00",
        "2088 0f10 8b1d 75d0 620d 263d 4c4d 6564",
        "3fe1 0140 889a cac8 b212 34da 8f01 3040 899a cac8 b525 4207 317f 00",
        "bfbe",
        "7f00 0136 7f00 9fa8 7495 4fe6 a1ab 7995 61c3 dcbf ca86 4289 1f52 d571 5042 1001 5136 a5a8 \
         2c9f 4090 9aca c8b2 1234 da85 a42a 466a 10b4 66ab febd 0f3d d939 373c 7cb8 4d92 96e7 f0e3 \
         e2fd dd92 61fe 689a 4c58 6cfd e4d3 97ba 60f1 a2f7 09a4 fcd3 47ed daf4 5e34 e02f e5da 33d3 \
         2778 c522 3f79 61f0 3fcd 16f3 13e9 ce29 3bc6 2911 fbb9 bf44 c5a2 ddbf 997d 46ce 5cb1 d3fb \
         df01 a1cd 7bab 7777 f0e3 2f1c 1873 ede0 d6ec 1565 0c75 6dae 3e5c 2d93 a60b 7f7f 279e 3fcb \
         a8fd d9",
        "3fe1 1f88 5f8b 1d75 d062 0d26 3d4c 4d65 6440 889a cac8 b212 34da 8f01 3640 899a cac8 b525 \
         4207 317f 9fa8 7495 4fe6 a1ab 7995 61c3 dcbf ca86 4289 1f52 d571 5042 1001 5136 a5a8 2c9f \
         c1",
    ],
};

const NGHTTP2_REQUESTS: Recorded = Recorded {
    entries: &[6, 9, 6, 4, 4],
    blocks: &[
        "8386 049e 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b17 ac28 d25b c7a9 2335 45b3 4186 \
         a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 c540 0274 6586 \
         4d83 3505 b11f 4089 9aca c8b2 4d49 4f6a 7f86 0bef befb cedb 1f08 8dba 51d8 5b14 eb6c 65a0 \
         a958 2eff 4088 4d83 216b 1d85 a93f a700 166a 395f 14ac b6eb b1b2 d483 706c 90af 89f9 0050 \
         15a7 5971 6002 5038 e8c6 08c6 f805 1bab 003f",
        "8386 049e 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b17 ac28 d25b c7a9 2335 45b3 c3c2 \
         c1c0 7f00 8508 5f7d f7a9 1f08 8dba 51d8 5b14 eb6c 65a0 a958 2eff 7f00 a700 166a 395f 14ac \
         b6eb b1b2 d483 706c 90af 89f9 0050 15a7 5971 68dd 1c8e 46e8 5c7c 4065 9642 b003 408a 9aca \
         c8b2 4732 168c d57f ff02 8618 6f93 13fd 72df d34e 8e5a 1be7 bf87 acfb c8cf 3f70 a74e 2d01 \
         d3b8 0df3 f776 7cfb f2d3 a69d 9e39 d3c3 cf3d f475 d30c 3963 a70a 7f7f 34f8 e7cb 4d17 8490 \
         f3a7 8248 cd1e e4c5 c530 c347 48c4 d839 f2a2 dfdf cc9a 86cf 137e ee0f 8252 fb45 dcc9 a6ed \
         e21b b89b effb 8b87 1904 ffa1 8b8f acfb f033 9e9e 2d73 e41f 11e2 e16c 6ce5 ab",
        "203f e11f 8386 049e 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b17 ac28 d25b c7a9 2335 \
         45b3 4186 a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 c540 \
         0274 6586 4d83 3505 b11f 4089 9aca c8b2 4d49 4f6a 7f85 085f 7df7 a91f 088d ba51 d85b 14eb \
         6c65 a0a9 582e ff40 884d 8321 6b1d 85a9 3fa7 0016 6a39 5f14 acb6 ebb1 b2d4 8370 6c90 af89 \
         f900 5015 a759 7168 dd1c 8e46 e85c 7c40 6596 42b0 03",
        "3fe1 0183 8604 a162 cb6a 49a9 2afd c2be db6a 49a9 2ee2 d9dc c42b 188a 9bc7 a923 3545 b307 \
         72d4 947f 4186 a0e4 1d13 9d09 5f8b 1d75 d062 0d26 3d4c 4d65 647a 8a9a cac8 b4c7 602b ba25 \
         c540 0274 6586 4d83 3505 b11f",
        "8386 04a1 62cb 6a49 a92a fdc2 bedb 6a49 a92e e2d9 dcc4 2b18 8a9b c7a9 2335 45b3 0772 d494 \
         7fc1 c0bf be",
    ],
};

const NGHTTP2_REPLIES: Recorded = Recorded {
    entries: &[1, 3, 0, 2, 2, 4, 6],
    blocks: &[
        "885f 8b1d 75d0 620d 263d 4c4d 6564",
        "4088 9aca c8b2 1234 da8f 0130 4089 9aca c8b5 2542 0731 7f00",
        "2088 0f10 8b1d 75d0 620d 263d 4c4d 6564",
        "3fe1 0140 889a cac8 b212 34da 8f01 3040 899a cac8 b525 4207 317f 00",
        "bfbe",
        "7f00 0136 7f00 9fa8 7495 4fe6 a1ab 7995 61c3 dcbf ca86 4289 1f52 d571 5042 1001 5136 a5a8 \
         2c9f 0090 9aca c8b2 1234 da85 a42a 466a 10b4 66ab febd 0f3d d939 373c 7cb8 4d92 96e7 f0e3 \
         e2fd dd92 61fe 689a 4c58 6cfd e4d3 97ba 60f1 a2f7 09a4 fcd3 47ed daf4 5e34 e02f e5da 33d3 \
         2778 c522 3f79 61f0 3fcd 16f3 13e9 ce29 3bc6 2911 fbb9 bf44 c5a2 ddbf 997d 46ce 5cb1 d3fb \
         df01 a1cd 7bab 7777 f0e3 2f1c 1873 ede0 d6ec 1565 0c75 6dae 3e5c 2d93 a60b 7f7f 279e 3fcb \
         a8fd d9",
        "3fe1 1f88 5f8b 1d75 d062 0d26 3d4c 4d65 64c0 bf40 909a cac8 b212 34da 85a4 2a46 6a10 b466 \
         abfe bd0f 3dd9 3937 3c7c b84d 9296 e7f0 e3e2 fddd 9261 fe68 9a4c 586c fde4 d397 ba60 f1a2 \
         f709 a4fc d347 edda f45e 34e0 2fe5 da33 d327 78c5 223f 7961 f03f cd16 f313 e9ce 293b c629 \
         11fb b9bf 44c5 a2dd bf99 7d46 ce5c b1d3 fbdf 01a1 cd7b ab77 77f0 e32f 1c18 73ed e0d6 ec15 \
         650c 756d ae3e 5c2d 93a6 0b7f 7f27 9e3f cba8 fdd9",
    ],
};

fn expected((sizes, fields): &Said) -> (Vec<usize>, Vec<Field>) {
    let field = |(name, value): &Pair| Field {
        never: *name == SECRET.0,
        ..field(name, value)
    };
    (sizes.to_vec(), fields.iter().map(field).collect())
}

fn assert_decodes(recorded: &Recorded, said: &[Said]) {
    assert_eq!(recorded.blocks.len(), said.len());
    let mut decoder = Decoder::new();
    for (at, said) in said.iter().enumerate() {
        let block = bytes(recorded.blocks[at]);
        assert_eq!(read(&mut decoder, &block), Ok(expected(said)), "block {at}");
        let held = (62..127).take_while(|at| decoder.decode(&[0x80 | at], |_| {}).is_ok());
        assert_eq!(held.count(), recorded.entries[at], "block {at}");
    }
}

#[test]
fn requests_and_replies_that_gos_encoder_wrote_decode() {
    assert_decodes(&GO_REQUESTS, &REQUESTS);
    assert_decodes(&GO_REPLIES, &REPLIES);
}

#[test]
fn requests_and_replies_that_nghttp2_wrote_decode() {
    assert_decodes(&NGHTTP2_REQUESTS, &REQUESTS);
    assert_decodes(&NGHTTP2_REPLIES, &REPLIES);
}

#[test]
fn literals_say_the_same_fields_again() {
    let (mut reader, mut plain) = (Decoder::new(), plain::Decoder::new());
    for said in REQUESTS.iter().chain(&REPLIES) {
        let (sizes, fields) = expected(said);
        let mut block = Vec::new();
        for size in &sizes {
            write_resize(&mut block, *size);
        }
        for field in &fields {
            write_literal(&mut block, &field.name, &field.value, field.never);
        }
        assert_eq!(plain.decode(&block), fields);
        assert_eq!(read(&mut reader, &block), Ok((sizes, fields)));
    }
}
