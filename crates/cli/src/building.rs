//! `corewise run` of a build: the jobserver that it is offered.

use corewise_launch::command::Command;
use corewise_launch::jobserver::{Client, Offer};
use corewise_launch::runtimes::{Environment, Surroundings};
use corewise_launch::template::Template;
use corewise_local::outside::{Ends, Follower, Jobserver};
use serde_json::{Value, json};

/// A program that might be offered a jobserver.
pub(crate) struct Building {
    client: Option<Client>,
    jobs: Option<Option<u32>>,
}

/// What came of it.
pub(crate) struct Offered {
    /// What follows the claim.
    pub(crate) follower: Option<Box<dyn Follower>>,
    /// To be dropped once the program runs.
    pub(crate) ends: Option<Ends>,
    /// How many jobs may run at once at most, and the options that said so; or why nothing was offered.
    told: Result<(u32, Vec<String>), String>,
}

impl Building {
    /// Whether a program is one; `jobs` is what `--jobs` says.
    pub(crate) fn of(template: &Template, jobs: Option<Option<u32>>) -> Option<Building> {
        let environment = Surroundings::of_this_process(Vec::new()).environment;
        // That it cannot be found is said by whoever starts it.
        let client = Command::new(&template.program)
            .ok()
            .and_then(|command| Client::of(&command.program, &environment));
        (client.is_some() || jobs.is_some()).then_some(Building { client, jobs })
    }

    /// The command with its jobserver, on a machine of `cpus` effective CPUs; `unmanaged` says why it will
    /// have no claim, if it will not.
    pub(crate) fn offer(
        &self,
        command: Command,
        environment: &Environment,
        cpus: u32,
        unmanaged: Option<&str>,
    ) -> (Command, Offered) {
        match self.try_to_offer(&command, environment, cpus, unmanaged) {
            Ok((told, offered)) => (told, offered),
            Err(why) => {
                let offered = Offered {
                    follower: None,
                    ends: None,
                    told: Err(why),
                };
                (command, offered)
            }
        }
    }

    fn try_to_offer(
        &self,
        command: &Command,
        environment: &Environment,
        cpus: u32,
        unmanaged: Option<&str>,
    ) -> Result<(Command, Offered), String> {
        if let Some(why) = unmanaged {
            return Err(why.to_owned());
        }
        let build = match Offer::to(command, self.client, self.jobs, environment, cpus) {
            Offer::Jobserver(build) => build,
            Offer::AsItIs(why) => return Err(why),
        };
        // Until there is a claim, no more than the machine has CPUs.
        let (jobserver, ends) = Jobserver::create(build.most(), cpus)
            .map_err(|error| format!("no jobserver can be made: {error}"))?;
        let command = build.told(command.clone(), environment, ends.numbers());
        let offered = Offered {
            follower: Some(Box::new(jobserver)),
            ends: Some(ends),
            told: Ok((build.most(), build.replaced().to_vec())),
        };
        Ok((command, offered))
    }
}

impl Offered {
    /// How many jobs may run at once at most, where it has a jobserver.
    pub(crate) fn most(&self) -> Option<u32> {
        self.told.as_ref().ok().map(|(most, _)| *most)
    }

    /// With how much it ran, for people.
    pub(crate) fn with(&self) -> String {
        match self.most() {
            Some(most) => format!("up to {most} jobs at once"),
            None => "its own number of jobs".to_owned(),
        }
    }

    /// How that came, for people.
    pub(crate) fn how(&self) -> String {
        match &self.told {
            Ok((_, replaced)) if replaced.is_empty() => "as many as its claim allows".to_owned(),
            Ok((_, replaced)) => {
                let replaced = replaced.join(" and ");
                format!("as many as its claim allows; {replaced} is taken for the most")
            }
            Err(why) => format!("as plain Linux runs it: {why}"),
        }
    }

    /// For the summary.
    pub(crate) fn to_json(&self) -> Value {
        let (most, replaced) = self.told.as_ref().ok().cloned().unwrap_or_default();
        json!({
            "most": self.told.as_ref().ok().map(|_| most),
            "replaced": replaced,
            "why_not": self.told.as_ref().err(),
        })
    }
}
