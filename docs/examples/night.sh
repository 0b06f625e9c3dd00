#!/bin/sh
# Translate a folder every night, for at most 12 hours. What is left continues the next night.
#
#     sh night.sh SCANS MODEL RESULTS
#
# In a crontab: 0 19 * * * sh /srv/night.sh /data/scans /data/t1-to-t2.safetensors /data/results
set -u
scans=$1 model=$2 results=$3
report=$results-$(date +%F).json

# INT lets studies in progress end; their results are kept.
timeout --preserve-status --signal=INT 12h cuda-cyclegan translate "$scans" --model "$model" \
    --output "$results" --report "$report" --preview --quiet
status=$?

[ -e "$report" ] && cuda-cyclegan report "$report" --html "${report%.json}.html" --force
case $status in
    0) echo "All studies are translated." ;;
    1) echo "Some studies failed: see ${report%.json}.html" ;;
    130) echo "Stopped after 12 hours; the next night continues." ;;
    *) echo "Nothing was translated: see the message above." ;;
esac
exit $status
