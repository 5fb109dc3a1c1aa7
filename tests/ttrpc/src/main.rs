//! One end of a ttrpc connection as the crate `ttrpc` has it, which shims and agents in Rust speak. The
//! other end is a test of the NRI room.
//!
//! ```text
//! koord-ttrpc-end server SOCKET   serves until it is killed
//! koord-ttrpc-end client SOCKET   calls, and ends with success if every answer was right
//! ```
//!
//! The service is `koord.Echo`: `Echo` answers with the payload, `Fail` with FAILED_PRECONDITION.
#![forbid(unsafe_code)]

use std::{collections::HashMap, process::ExitCode, thread};
use ttrpc::{
    Client, Code, Error, MethodHandler, Request, Response, Server, TtrpcContext, get_status,
};

const SERVICE: &str = "koord.Echo";
const REFUSAL: &str = "not today";
/// Around the ends of buffers, and close to the most that a message may have.
const SIZES: [usize; 8] = [0, 1, 127, 4_060, 4_096, 65_536, 1_048_576, 4_194_000];
const CALLERS: usize = 4;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mode, socket) = (arguments.next(), arguments.next());
    let address = format!("unix://{}", socket.unwrap_or_default());
    let ended = match mode.as_deref() {
        Some("server") => serve(&address),
        Some("client") => call(&address),
        _ => Err("say server or client, and a socket".to_owned()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Answers with what came.
struct Echo;

impl MethodHandler for Echo {
    fn handler(&self, context: TtrpcContext, request: Request) -> ttrpc::Result<()> {
        let mut response = Response::new();
        response.set_status(get_status(Code::OK, ""));
        response.payload = request.payload;
        context.respond(context.mh.stream_id, response)
    }
}

/// Refuses.
struct Fail;

impl MethodHandler for Fail {
    fn handler(&self, context: TtrpcContext, _: Request) -> ttrpc::Result<()> {
        let mut response = Response::new();
        response.set_status(get_status(Code::FAILED_PRECONDITION, REFUSAL));
        context.respond(context.mh.stream_id, response)
    }
}

fn serve(address: &str) -> Result<(), String> {
    let mut methods: HashMap<String, Box<dyn MethodHandler + Send + Sync>> = HashMap::new();
    methods.insert(format!("/{SERVICE}/Echo"), Box::new(Echo));
    methods.insert(format!("/{SERVICE}/Fail"), Box::new(Fail));
    let server = Server::new().bind(address).map_err(|it| it.to_string())?;
    let mut server = server.register_service(methods);
    server.start().map_err(|it| it.to_string())?;
    loop {
        thread::park();
    }
}

fn request(service: &str, method: &str, payload: Vec<u8>) -> Request {
    let mut request = Request::new();
    request.service = service.to_owned();
    request.method = method.to_owned();
    request.timeout_nano = 30_000_000_000;
    request.payload = payload;
    request
}

/// Several at once over one connection, then what is refused.
fn call(address: &str) -> Result<(), String> {
    let client = Client::connect(address).map_err(|it| it.to_string())?;
    let callers = (0..CALLERS).map(|caller| {
        let client = client.clone();
        thread::spawn(move || echoes(&client, caller))
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.join().map_err(|_| "a caller died")??;
    }
    for (service, method, code, text) in [
        (SERVICE, "Fail", Code::FAILED_PRECONDITION, REFUSAL),
        (SERVICE, "Nothing", Code::UNIMPLEMENTED, "no such method"),
    ] {
        match client.request(request(service, method, Vec::new())) {
            Err(Error::RpcStatus(status)) if status.code() == code && status.message == text => {}
            other => return Err(format!("{method} gives {other:?}")),
        }
    }
    Ok(())
}

fn echoes(client: &Client, caller: usize) -> Result<(), String> {
    for size in SIZES {
        let payload = vec![u8::try_from(caller).unwrap_or_default(); size];
        let response = client.request(request(SERVICE, "Echo", payload.clone()));
        let response = response.map_err(|it| format!("{size} bytes: {it}"))?;
        if response.payload != payload {
            return Err(format!("{size} bytes come back as others"));
        }
    }
    Ok(())
}
