"""The files of the page: HTML, CSS and JavaScript, served by slackwater.monitoring.http."""
