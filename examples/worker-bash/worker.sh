#!/usr/bin/env bash
# A Tenure worker in bash 5.1 or newer, with curl and jq; it runs one job at a time:
#   TENURE_URL=http://127.0.0.1:8420 TENURE_QUEUE=default ./worker.sh
# docs/reference/protocol.md says what it does and why; `tenure conformance --worker ./worker.sh` checks it.
set -u
url=${TENURE_URL:-http://127.0.0.1:8420} queue=${TENURE_QUEUE:-default} worker_id=bash:$$ stopping=

# The handlers: `handle TYPE PAYLOAD` prints the result as JSON, or an error text on stderr. Exit code 1: it may be
# tried again, 2: no retry can help. It runs in a process of its own, which SIGTERM ends.
types='["echo", "sleep", "fail"]'
handle() {
    case $1 in
        echo) jq .value <<<"$2" ;;
        sleep) exec sleep "$(jq .seconds <<<"$2")" ;;
        fail) jq -r .message <<<"$2" >&2; exit "$(jq 'if .permanent then 2 else 1 end' <<<"$2")" ;;
    esac
}

# post PATH BODY: send it until there is an answer to it; sets `status` and `answer`. After no answer, a 5xx or a
# retryable refusal, the same body goes again: its keys make the repeat safe. The API key is not on the command line.
post() {
    local pause=0.1 output
    while true; do
        output=$(curl --silent --max-time 30 --write-out '\n%{http_code}' --header 'Content-Type: application/json' \
            --config <(echo "header = \"Authorization: Bearer ${TENURE_KEY:-}\"") --data-binary @- "$url$1" <<<"$2")
        status=${output##*$'\n'} answer=${output%$'\n'*}
        if ((10#$status > 0 && 10#$status < 500)) && [[ $(jq -r '.error.retryable' <<<"$answer") != true ]]; then return; fi
        echo "$1: no answer ($status); sent again" >&2
        sleep $pause
        pause=1
    done
}

# Run the claimed job in `claim`, and report one outcome: or none, when the lease is lost.
run() {
    local path lease beat handler timer code verb='' facts='{}'
    path=/api/v1/jobs/$(jq -r .job.id <<<"$claim")
    lease=$(jq '{claims, lease_token}' <<<"$claim")
    beat=$(jq '.lease_seconds / 3' <<<"$claim")
    post "$path/start" "$(jq '. + {idempotency_key: "start:\(.claims)"}' <<<"$lease")"
    if [[ $status != 200 ]]; then return; fi
    handle "$(jq -r .job.type <<<"$claim")" "$(jq .job.payload <<<"$claim")" >"$directory/result" 2>"$directory/error" &
    handler=$!
    while [[ -z $verb ]]; do
        sleep "$beat" &
        timer=$!
        wait -n $handler $timer # SIGTERM ends the wait too
        kill $timer 2>/dev/null
        if ! kill -0 $handler 2>/dev/null; then break; fi
        if [[ $stopping ]]; then
            verb=hand-back
        else
            post "$path/heartbeat" "$lease"
            if [[ $status != 200 ]]; then # another worker has the job, or it was cancelled at once
                kill $handler
                return
            fi
            if [[ $(jq .cancel_requested <<<"$answer") == true ]]; then verb=cancelled; fi
        fi
    done
    if [[ $verb ]]; then
        kill $handler 2>/dev/null
    elif wait $handler; then
        verb=succeed facts=$(jq --slurp '{result: .[0]}' "$directory/result")
    else
        code=$? verb=fail
        facts=$(jq -Rs --argjson code $code \
            '{error: {type: (if $code == 2 then "PermanentError" else "Error" end), message: .}}' "$directory/error")
    fi
    post "$path/$verb" "$(jq --arg verb $verb --argjson facts "$facts" \
        '. + $facts + {idempotency_key: "\($verb):\(.claims)"}' <<<"$lease")"
}

directory=$(mktemp -d)
trap 'stopping=yes' TERM INT
while [[ ! $stopping ]]; do
    # A new claim key for each claim. The wait is short, because bash heeds SIGTERM only when curl has ended.
    post /api/v1/claims "$(jq -n --arg key "$(cat /proc/sys/kernel/random/uuid)" --arg worker_id "$worker_id" \
        --arg queue "$queue" --argjson types "$types" \
        '{worker_id: $worker_id, queues: [$queue], types: $types, wait_seconds: 2, claim_key: $key, record: false}')"
    if [[ $status != 200 && $status != 409 ]]; then
        echo "$answer" >&2
        break
    fi
    claim=$(jq '.claims[0] // empty' <<<"$answer")
    if [[ $claim ]]; then run; fi
done
rm -rf "$directory" # not in a trap for EXIT: a process that is killed as soon as it was started would run it too
[[ $stopping ]]
