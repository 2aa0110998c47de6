//! Parquet files in folders by day and host, as tools for many files expect them.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RecordWriter;
use tempfile::NamedTempFile;

use crate::recording::Recording;

/// The permissions of the files, before the process's umask.
const MODE: u32 = 0o666;

/// The reason why a recording cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file is there already.
    #[error("{} exists; --force overwrites it", .0.display())]
    Exists(PathBuf),
    /// A folder or a file cannot be written.
    #[error("cannot write {}: {why}", .path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The rows cannot be encoded.
    #[error("cannot write {}: {why}", .path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: ParquetError,
    },
}

/// The files of one recording, of which each table has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// What was waited for each latch in each second.
    pub waits: PathBuf,
    /// Which statements were seen to wait for each latch in each second.
    pub statements: PathBuf,
    /// Which statements were seen to use CPU time in each second.
    pub cpu_statements: PathBuf,
    /// Through which calls threads were seen to have come to wait for each latch in each second.
    pub call_stacks: PathBuf,
    /// What the holders of each latch did in each second.
    pub holders: PathBuf,
    /// For which files threads waited in each second.
    pub file_waits: PathBuf,
    /// How many files of each kind were flushed in each second, and how long that took.
    pub fsyncs: PathBuf,
    /// The seconds, with what does not depend on a latch.
    pub seconds: PathBuf,
}

impl Tables {
    /// Writes the tables of a recording to `TABLE/dt=DAY/host=NAME/STEM-TIME.parquet` in a folder. The day and the time
    /// are those of the recording's beginning, UTC. If `force` is given, files that exist are overwritten.
    ///
    /// # Errors
    /// Fails if a file exists, or cannot be written.
    pub fn write(recording: &Recording, stem: &str, folder: &Path, force: bool) -> Result<Tables, ExportError> {
        let began = began(recording);
        let day = format!("dt={}", began.strftime("%Y-%m-%d"));
        let host = format!("host={}", as_name(&recording.start.host.name));
        let name = format!("{}-{}.parquet", as_name(stem), began.strftime("%H%M%S"));
        let path = |table: &str| folder.join(table).join(&day).join(&host).join(&name);
        let [waits, statements, cpu_statements, call_stacks, holders, file_waits, fsyncs, seconds] =
            ["waits", "statements", "cpu_statements", "call_stacks", "holders", "file_waits", "fsyncs", "seconds"]
                .map(path);
        let tables = Tables { waits, statements, cpu_statements, call_stacks, holders, file_waits, fsyncs, seconds };
        let exists = |path: &&PathBuf| !force && path.exists();
        if let Some(path) = tables.paths().into_iter().find(exists) {
            return Err(ExportError::Exists(path.clone()));
        }
        write(&tables.waits, &super::waits(recording)[..])?;
        write(&tables.statements, &super::statements(recording)[..])?;
        write(&tables.cpu_statements, &super::cpu_statements(recording)[..])?;
        write(&tables.call_stacks, &super::call_stacks(recording)[..])?;
        write(&tables.holders, &super::holders(recording)[..])?;
        write(&tables.file_waits, &super::file_waits(recording)[..])?;
        write(&tables.fsyncs, &super::fsyncs(recording)[..])?;
        write(&tables.seconds, &super::each_second(recording)[..])?;
        Ok(tables)
    }

    /// Returns the paths of all tables.
    pub fn paths(&self) -> [&PathBuf; 8] {
        let Tables { waits, statements, cpu_statements, call_stacks, holders, file_waits, fsyncs, seconds } = self;
        [waits, statements, cpu_statements, call_stacks, holders, file_waits, fsyncs, seconds]
    }
}

fn began(recording: &Recording) -> Timestamp {
    let ms = recording.start.began_ms.try_into().ok();
    let began = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    began.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns a text as a part of a path: others choose what hosts and servers are called.
pub(crate) fn as_name(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if name.trim_matches('.').is_empty() {
        return "unknown".to_owned();
    }
    name
}

/// Writes a file atomically: it is either complete or not there.
fn write<R>(path: &Path, rows: &[R]) -> Result<(), ExportError>
where
    for<'a> &'a [R]: RecordWriter<R>,
{
    let failed = |why| ExportError::Write { path: path.to_owned(), why };
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    let mut file = beside(path).map_err(failed)?;
    encode(file.as_file_mut(), rows).map_err(|why| ExportError::Encode { path: path.to_owned(), why })?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Creates a file under another name in the folder of `path`, which becomes that file once it is whole.
pub(crate) fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().permissions(Permissions::from_mode(MODE)).tempfile_in(folder)
}

fn encode<R>(file: &mut File, rows: &[R]) -> Result<(), ParquetError>
where
    for<'a> &'a [R]: RecordWriter<R>,
{
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(file, rows.schema()?, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    rows.write_to_row_group(&mut group)?;
    group.close()?;
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::as_name;

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(as_name("db1.example-2_x"), "db1.example-2_x");
        assert_eq!(as_name("../../etc/x y"), ".._.._etc_x_y");
        assert_eq!(["", ".", ".."].map(as_name), ["unknown"; 3].map(str::to_owned));
    }
}
