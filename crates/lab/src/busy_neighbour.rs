//! Experiment `busy-neighbour`: programs that suffer most from one busy process beside them, run by
//! `corewise run` with no advice, against every static number of threads and way of waiting.

use std::time::Duration;

use anyhow::Result;

use crate::cells::{Cell, Condition, Plan};
use crate::corewise::{Corewise, Ran};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::programs::Catalogue;
use crate::stats::median;

const PROGRAMS: [&str; 3] = ["lightgbm", "numpy-svd", "numba-omp"];
const CONDITIONS: [Condition; 2] = [Condition::HogSameSession, Condition::HogOwnSession];

/// Measures each program beside a hog in either session.
pub fn run(context: &Context) -> Result<Report> {
    let catalogue = Catalogue::read(context)?;
    let corewise = Corewise::new(context)?;
    let mut names = context.pick(&PROGRAMS);
    if context.quick && !context.names_any(&PROGRAMS) {
        names.truncate(1);
    }
    let mut report = Report::new(
        context,
        "busy-neighbour",
        "`corewise run` without advice and without history, against every static number of threads \
         up to twice the CPUs with each way of waiting (the best found on half of the rounds, \
         judged on the other half), and against plain Linux",
        "the program, corewise and the hog of hog-same-session in the lab's session; the hog of \
         hog-own-session in its own",
    );
    let mut table = Table::new(
        "medians in seconds",
        &[
            "cell",
            "plain",
            "best static",
            "with",
            "corewise",
            "with",
            "ratio",
            "search",
            "plain/best",
            "plain/corewise",
            "hog plain",
            "hog corewise",
        ],
    );
    for name in names {
        for condition in Condition::picked(context, &CONDITIONS) {
            cell(
                context,
                &catalogue,
                &corewise,
                name,
                condition,
                &mut report,
                &mut table,
            )?;
        }
    }
    report.tables.push(table);
    report.figure("capacity", capacity(Duration::from_millis(500))?);
    report.note(
        "corewise: the program's own run; the search before it, with its start-ups, is in its own column (a history \
         hit saves it). Plain runs are ended after 30 s or three times the best: the factors over \
         plain are then at least what is shown",
    );
    Ok(report)
}

fn cell(
    context: &Context,
    catalogue: &Catalogue,
    corewise: &Corewise,
    name: &str,
    condition: Condition,
    report: &mut Report,
    table: &mut Table,
) -> Result<()> {
    let program = catalogue.program(name)?;
    catalogue.installed(program)?;
    let plan = Plan {
        rounds: context.rounds(4, 2),
        scale: if context.quick { 1.0 } else { 1.5 },
        keep: &[],
    };
    let template = catalogue.template(program, plan.scale)?;
    let mut runs: Vec<Ran> = Vec::new();
    let cell = Cell::measure(
        context,
        catalogue,
        program,
        condition,
        &plan,
        &mut |round, surroundings| {
            let ran = corewise.forgetful()?.run(&template, surroundings)?;
            context.say(format_args!(
                "{name}, {}, round {}: corewise ran {} threads in {:.2} s, {:.2} s with its search",
                condition.name(),
                round + 1,
                ran.setting,
                ran.run_seconds,
                ran.whole_seconds,
            ));
            runs.push(ran);
            Ok(())
        },
    )?;
    let all = |value: &dyn Fn(&Ran) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let own = all(&|ran| ran.run_seconds);
    let search = median(&all(&|ran| ran.whole_seconds - ran.run_seconds));
    let hog = median(&all(&|ran| ran.hog_share.unwrap_or(f64::NAN)));
    let best = cell.best(None, false);
    let (plain, fastest) = (cell.median_seconds(cell.plain), cell.median_seconds(best));
    let ratio = cell.ratio_of(&own, false);
    let settings = runs.iter().map(|ran| ran.setting.to_string());
    let mut settings = settings.collect::<Vec<_>>();
    settings.sort();
    settings.dedup();
    let key = format!("{name}.{}", condition.name());
    report.figure(format!("{key}.ratio"), ratio);
    report.figure(
        format!("{key}.ratio_where_hog_keeps_its_share"),
        cell.ratio_of(&own, true),
    );
    report.figure(format!("{key}.plain_seconds"), plain);
    report.figure(format!("{key}.best_static_seconds"), fastest);
    report.figure(format!("{key}.corewise_seconds"), median(&own));
    report.figure(format!("{key}.search_seconds"), search);
    report.figure(format!("{key}.best_static_over_plain"), plain / fastest);
    report.figure(format!("{key}.corewise_over_plain"), plain / median(&own));
    report.bars.push(Bar::at_most(
        format!("{key}: run time over the best static"),
        ratio,
        1.10,
    ));
    table.row([
        key,
        number(plain),
        number(fastest),
        best.to_string(),
        number(median(&own)),
        settings.join(", "),
        number(ratio),
        number(search),
        number(plain / fastest),
        number(plain / median(&own)),
        cell.hog_share(cell.plain).map_or("-".to_owned(), number),
        number(hog),
    ]);
    Ok(())
}
