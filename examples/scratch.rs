use armtrace::{catalog, names, symbols::Image};
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let t = std::time::Instant::now();
    let image = Image::open(std::path::Path::new(&path)).unwrap();
    let server = catalog::identify(&image).unwrap();
    eprintln!("identify {:?} {} {} {}", t.elapsed(), server.flavor.as_str(), server.version, server.family.name);
    let mut p = image.relative_relocations();
    p.sort_unstable();
    eprintln!("relocs {:?}", t.elapsed());
    let ins = names::psi::Instruments::new(&image, &p);
    let code = names::references::References::new(&image, &p);
    eprintln!("psi {:?} {}", t.elapsed(), ins.len());
    let catalog::Layout::Mysql(layout) = server.family.layout else { return };
    let keys = names::latch_ids::keys(&code, layout, &ins);
    eprintln!("keys {:?} {}", t.elapsed(), keys.len());
    let mut all: Vec<_> = keys.iter().map(|(n, k)| (n, k.map(|k| ins.by_key(k).unwrap().name.clone()))).collect();
    all.sort();
    let sites = names::created::sites(&code, layout, &ins);
    eprintln!("sites {:?} {}", t.elapsed(), sites.len());
    for (n, k) in all {
        println!("{n} {k:?}");
    }
    for s in sites {
        println!(
            "{} {} {:?}",
            s.file,
            s.line,
            match s.key {
                names::created::Key::Instrument(k) => format!("{:?}", ins.by_key(k).unwrap()),
                k => format!("{k:?}"),
            }
        );
    }
}
