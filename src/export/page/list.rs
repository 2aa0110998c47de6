//! The page that lists several servers.

use maud::{html, Markup};
use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};

use super::STYLE;
use crate::export::{Server, Servers, State};
use crate::html::document_with;
use crate::present::format;
use crate::ui::servers::Figures;

/// The seconds after which a browser asks for newer figures. Those of the last seconds need two that are not far apart.
const REFRESH: &str = "5";

/// Returns the page at `/`, with a row for each server. Figures are of the last seconds, or else since attach.
pub fn list(servers: &dyn Servers) -> String {
    let servers = servers.servers();
    let body = html! {
        header {
            h1 { "Servers" }
            nav aria-label="Pages" {
                a href="/metrics" { "Metrics" }
                a href="/healthz" { "Health" }
            }
        }
        main id="figures" {
            @if servers.is_empty() {
                p { "No MySQL or MariaDB server runs here. One that starts is found within seconds." }
            } @else {
                (table(&servers))
            }
        }
    };
    let head = html! { meta http-equiv="refresh" content=(REFRESH); };
    document_with("Servers", STYLE, &head, &body)
}

fn table(servers: &[Server]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    th scope="col" { "Server" }
                    th.text scope="col" { "Version" }
                    th scope="col" { "Threads waiting" }
                    th scope="col" { "CPUs used" }
                    th scope="col" { "Overhead" }
                    th.text scope="col" { "Longest waits" }
                }
            }
            tbody { @for server in servers { (row(server)) } }
        }
    }
}

fn row(server: &Server) -> Markup {
    let Some(view) = &server.view else {
        return html! {
            tr { th scope="row" { (server.name) } td.text colspan="5" { (state(&server.state)) } }
        };
    };
    let figures = view.remembering(Figures::new);
    let page = format!("/servers/{}/", utf8_percent_encode(&server.name, NON_ALPHANUMERIC));
    html! {
        tr {
            th scope="row" { a href=(page) { (server.name) } }
            td.text { (figures.server) }
            td { (figures.waiting()) }
            td { (figures.cpus()) }
            td { (figures.overhead()) }
            td.text { (figures.latch.as_deref().unwrap_or(format::NOTHING)) }
        }
    }
}

fn state(state: &State) -> String {
    match state {
        State::Measured => String::new(),
        State::Ended => "has ended".to_owned(),
        State::Refused(why) => format!("not measured: {why}"),
    }
}
