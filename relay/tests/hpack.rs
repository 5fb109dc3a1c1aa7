//! The decoder against the examples of RFC 7541, appendix C, and against what an encoder must not
//! send.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_relay::hpack::{Decoder, HpackError, write_literal, write_resize};
use support::hpack::{Encoder, Field, bytes, field, huffman, read};
use support::rng::Rng;

/// The fields of a block; a resize is left out.
fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, HpackError> {
    let (_, fields) = read(decoder, block)?;
    Ok(fields)
}

type Pairs<'a> = &'a [(&'a str, &'a str)];

/// Decodes a block, compares its fields, then compares the dynamic table.
fn assert_decodes(decoder: &mut Decoder, hex: &str, expected: Pairs<'_>, table: Pairs<'_>) {
    let expected: Vec<Field> = expected.iter().map(|(n, v)| field(n, v)).collect();
    assert_eq!(fields(decoder, &bytes(hex)).unwrap(), expected, "{hex}");
    for (index, (name, value)) in (62..).zip(table) {
        let entry = fields(decoder, &[0x80 | index]).unwrap();
        assert_eq!(entry, [field(name, value)], "table after {hex}");
    }
    let past = 62 + table.len();
    let beyond = [0x80 | u8::try_from(past).unwrap()];
    let error = fields(decoder, &beyond).unwrap_err();
    assert_eq!(error, HpackError::Index(past), "table after {hex}");
}

const REQUESTS: [Pairs<'_>; 3] = [
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

const REQUEST_TABLES: [Pairs<'_>; 3] = [
    &[(":authority", "www.example.com")],
    &[
        ("cache-control", "no-cache"),
        (":authority", "www.example.com"),
    ],
    &[
        ("custom-key", "custom-value"),
        ("cache-control", "no-cache"),
        (":authority", "www.example.com"),
    ],
];

const DATE_21: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const DATE_22: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const PRIVATE: (&str, &str) = ("cache-control", "private");
const COOKIE: (&str, &str) = (
    "set-cookie",
    "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
);

const RESPONSES: [Pairs<'_>; 3] = [
    &[(":status", "302"), PRIVATE, DATE_21, LOCATION],
    &[(":status", "307"), PRIVATE, DATE_21, LOCATION],
    &[
        (":status", "200"),
        PRIVATE,
        DATE_22,
        LOCATION,
        ("content-encoding", "gzip"),
        COOKIE,
    ],
];

const RESPONSE_TABLES: [Pairs<'_>; 3] = [
    &[LOCATION, DATE_21, PRIVATE, (":status", "302")],
    &[(":status", "307"), LOCATION, DATE_21, PRIVATE],
    &[COOKIE, ("content-encoding", "gzip"), DATE_22],
];

#[test]
fn literals_of_appendix_c_2_decode() {
    let mut decoder = Decoder::new();
    let indexed = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    let entry = ("custom-key", "custom-header");
    assert_decodes(&mut decoder, indexed, &[entry], &[entry]);

    let mut decoder = Decoder::new();
    let plain = "040c 2f73 616d 706c 652f 7061 7468";
    assert_decodes(&mut decoder, plain, &[(":path", "/sample/path")], &[]);

    let never = bytes("1008 7061 7373 776f 7264 0673 6563 7265 74");
    let secret = Field {
        never: true,
        ..field("password", "secret")
    };
    assert_eq!(fields(&mut decoder, &never).unwrap(), [secret]);
    assert_decodes(&mut decoder, "82", &[(":method", "GET")], &[]);
}

#[test]
fn requests_of_appendix_c_3_decode() {
    let blocks = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let mut decoder = Decoder::new();
    for at in 0..3 {
        assert_decodes(&mut decoder, blocks[at], REQUESTS[at], REQUEST_TABLES[at]);
    }
}

#[test]
fn requests_of_appendix_c_4_decode() {
    let blocks = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let mut decoder = Decoder::new();
    for at in 0..3 {
        assert_decodes(&mut decoder, blocks[at], REQUESTS[at], REQUEST_TABLES[at]);
    }
}

#[test]
fn responses_of_appendix_c_5_decode() {
    let blocks = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 \
         303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 \
         6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 \
         5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 \
         5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let mut decoder = Decoder::new();
    fields(&mut decoder, &bytes("3fe101")).unwrap();
    assert_eq!(decoder.table_size(), 256);
    for at in 0..3 {
        assert_decodes(&mut decoder, blocks[at], RESPONSES[at], RESPONSE_TABLES[at]);
    }
}

#[test]
fn responses_of_appendix_c_6_decode() {
    let blocks = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b \
         ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad \
         94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 \
         65c0 03ed 4ee5 b106 3d50 07",
    ];
    let mut decoder = Decoder::new();
    fields(&mut decoder, &bytes("3fe101")).unwrap();
    for at in 0..3 {
        assert_decodes(&mut decoder, blocks[at], RESPONSES[at], RESPONSE_TABLES[at]);
    }
}

#[test]
fn resizes_are_shown_evict_and_may_come_twice() {
    let mut decoder = Decoder::new();
    fields(&mut decoder, b"\x40\x01a\x01b").unwrap();
    let (sizes, _) = read(&mut decoder, b"\x20\x3f\xe1\x1f\x82").unwrap();
    assert_eq!(sizes, [0, 4_096]);
    let gone = fields(&mut decoder, b"\xbe");
    assert_eq!(gone, Err(HpackError::Index(62)));
}

#[test]
fn name_may_be_that_of_the_entry_which_its_own_insertion_evicts() {
    let mut decoder = Decoder::new();
    // 32 + 4 + 1 bytes: room for one entry.
    fields(&mut decoder, b"\x3f\x06").unwrap();
    fields(&mut decoder, b"\x40\x04name\x01a").unwrap();
    let second = fields(&mut decoder, b"\x7e\x01b").unwrap();
    assert_eq!(second, [field("name", "b")]);
    assert_eq!(fields(&mut decoder, b"\xbe").unwrap(), [field("name", "b")]);
}

#[test]
fn empty_strings_and_the_empty_block_are_legal() {
    let mut decoder = Decoder::new();
    assert_eq!(fields(&mut decoder, b"").unwrap(), []);
    assert_eq!(
        fields(&mut decoder, b"\x00\x00\x00\x00\x80\x80").unwrap(),
        [field("", ""), field("", "")]
    );
}

#[test]
fn whatever_an_encoder_must_not_send_is_refused() {
    let mut over_limit = Vec::new();
    write_resize(&mut over_limit, 4_097);
    let table_size = HpackError::TableSize {
        size: 4_097,
        limit: 4_096,
    };
    let cases: [(&[u8], HpackError); 18] = [
        (b"\x80", HpackError::Index(0)),
        (b"\xbe", HpackError::Index(62)),
        (b"\x7f\x00\x00", HpackError::Index(63)),
        (b"\x0f\x2f\x00", HpackError::Index(62)),
        (b"\xff\xff\xff\xff\x7f", HpackError::Index(268_435_582)),
        (b"\xff\x80\x80\x80\x80\x00", HpackError::Integer),
        (
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            HpackError::Integer,
        ),
        (b"\xff", HpackError::Truncated),
        (b"\xff\x80", HpackError::Truncated),
        (b"\x40", HpackError::Truncated),
        (b"\x40\x05abc", HpackError::Truncated),
        (b"\x00\x01a", HpackError::Truncated),
        (b"\x00\x7f\xff\xff\xff\x7fa", HpackError::Truncated),
        // '0' in five bits and three zeros; eight ones behind it; the end-of-string symbol.
        (b"\x00\x81\x00\x00", HpackError::Huffman),
        (b"\x00\x82\x07\xff\x00", HpackError::Huffman),
        (b"\x00\x84\xff\xff\xff\xff\x00", HpackError::Huffman),
        (&over_limit, table_size),
        (b"\x82\x20", HpackError::LateResize),
    ];
    for (block, expected) in cases {
        assert_eq!(
            fields(&mut Decoder::new(), block),
            Err(expected),
            "{block:x?}"
        );
    }
}

#[test]
fn limit_binds_the_size_that_the_encoder_chooses() {
    let mut decoder = Decoder::new();
    decoder.set_limit(10_000);
    let mut block = Vec::new();
    write_resize(&mut block, 10_000);
    fields(&mut decoder, &block).unwrap();
    decoder.set_limit(9_999);
    let error = HpackError::TableSize {
        size: 10_000,
        limit: 9_999,
    };
    assert_eq!(fields(&mut decoder, &block), Err(error));
}

#[test]
fn any_encoder_is_followed_and_literals_say_the_same_again() {
    let mut rng = Rng::new(7);
    let mut encoder = Encoder::new();
    let (mut follower, mut reader) = (Decoder::new(), Decoder::new());
    for _ in 0..5_000 {
        let sent: Vec<Field> = (0..rng.below(12))
            .map(|_| {
                let name = rng.pick(&["a", ":path", "x-some", "content-type", "grpc-timeout"]);
                let length = rng.pick(&[0, 1, 5, 30, 300]);
                Field {
                    never: rng.one_in(9),
                    ..field(name, rng.bytes(length))
                }
            })
            .collect();
        if rng.one_in(20) {
            let limit = rng.pick(&[0, 50, 500, 4_096, 9_000]);
            encoder.set_limit(limit);
            follower.set_limit(limit);
        }
        let block = encoder.encode(&sent, &mut rng);
        assert_eq!(fields(&mut follower, &block).unwrap(), sent);
        let mut literals = Vec::new();
        for field in &sent {
            write_literal(&mut literals, &field.name, &field.value, field.never);
        }
        assert_eq!(fields(&mut reader, &literals).unwrap(), sent);
    }
}

/// Every byte in order, in the code of appendix B: by `AppendHuffmanString` of Go's
/// `golang.org/x/net/http2/hpack` v0.60.0, which has the appendix typed out.
const ALL_BYTES: &str = "\
    ffc7 fffd 8fff ffe2 ffff fe3f ffff e4ff fffe 5fff ffe6 ffff fe7f ffff e8ff ffea ffff fff3 \
    ffff fa7f ffff abff ffff dfff ffeb ffff fecf ffff edff fffe efff ffef ffff ff0f ffff f1ff \
    ffff 2fff ffff bfff ffcf ffff fd3f ffff d7ff fffd bfff ffdf ffff fe3f ffff e7ff fffe bfff \
    ffed 4fe3 f9ff affc abf1 febf afef e7fd fd2c bb00 0899 69b7 1d79 fb9f 7fff 20ff bff3 ff50 \
    ddbd 7f06 1c58 f265 cd9f 469d 5af6 6ddd bf87 1e5f 9cff 7ff7 fffc 3ff9 ffe4 5fff 4719 242c \
    b34e 6e9d 68a6 a3d7 dac4 26de fe3c faf7 fffb fe7f fbff dfff fffc fffe 6fff f4bf ff9f fffa \
    3fff d3ff ff53 fffd 5fff fb3f ffeb 7fff daff ffb7 ffff 73ff feef fffd efff febf fffb ffff \
    fd9f fffd bfff ebff ffe0 ffff eeff ffc3 ffff 8bff ff1f fffe 4fff ee7f ffb1 ffff 97ff fd9f \
    fffc dfff f9ff fffb ffff daff feef fff4 ffff b7ff fee7 fffe 8fff fd3f ffde ffff d5ff feef \
    fffb dfff fe1f ffdf ffff 7fff ff5f fffe cfff f07f ff87 fffe 0fff f17f ffed ffff 87ff ff77 \
    fffe ffff eaff ff8b fffe 3fff f93f fff8 7fff cbff ff37 ffff 1fff ff83 ffff e1ff febf ffe3 \
    ffff 3fff ff2f fffa 3fff fd9f ffff 17ff ffc7 ffff f27f fffd efff ffbf ffff f2ff fff8 ffff \
    fb7f ff97 fff8 ffff fe6f ffff c1ff fff8 7fff fe7f ffff c5ff ffe5 fffe 4fff f2ff fffd 1fff \
    ff4f ffff feff fffe 3fff ffc9 ffff f97f ffb3 ffff cfff fb7f ffcd ffff 4fff f9ff ffd1 ffff \
    cfff feaf fffa ffff fddf fffe ffff ff4f ffff 5fff ffab ffff a7ff ffd7 ffff f9bf fffe cfff \
    ffb7 ffff f3ff fffe 8fff ffd3 ffff fabf ffff 5fff ffff 7fff fecf ffff dbff fffb bfff ff7f \
    ffff f0ff fffb bf";

/// Appendix A from index 1 on: names, and values behind a blank.
const STATIC: &str = "\
    :authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|\
    :scheme https|:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|\
    :status 500|accept-charset|accept-encoding gzip, deflate|accept-language|accept-ranges|\
    accept|access-control-allow-origin|age|allow|authorization|cache-control|\
    content-disposition|content-encoding|content-language|content-length|content-location|\
    content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|\
    if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|\
    location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|\
    retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|\
    vary|via|www-authenticate";

#[test]
fn huffman_strings_of_all_bytes_decode() {
    let all: Vec<u8> = (0..=255).collect();
    let coded = bytes(ALL_BYTES);
    assert_eq!(huffman(&all), coded, "the tests' own encoder");
    let mut block = b"\x00\x01a".to_vec();
    support::hpack::integer(&mut block, 0x80, 7, coded.len());
    block.extend_from_slice(&coded);
    assert_eq!(
        fields(&mut Decoder::new(), &block).unwrap(),
        [field("a", &all)]
    );
}

#[test]
fn static_entries_are_those_of_appendix_a() {
    let mut decoder = Decoder::new();
    let entries: Vec<&str> = STATIC.split('|').collect();
    assert_eq!(entries.len(), 61);
    for (index, entry) in (1..).zip(entries) {
        let (name, value) = entry.split_once(' ').unwrap_or((entry, ""));
        let decoded = fields(&mut decoder, &[0x80 | index]).unwrap();
        assert_eq!(decoded, [field(name, value)], "{index}");
    }
}
